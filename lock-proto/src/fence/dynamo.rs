//! A condition for DynamoDB.

use alloc::string::{String, ToString as _};

use crate::lock::Fence;

/// The parts of an `UpdateItem` request that check and store the token.
///
/// Its numbers have 38 digits, so every token is exact. If the condition fails, the service answers
/// `ConditionalCheckFailedException`: the token is stale. With `ReturnValuesOnConditionCheckFailure`
/// set to `ALL_OLD`, that answer has the greatest token seen.
///
/// This has been tried on no service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamoCondition {
    /// `ConditionExpression`.
    pub condition: &'static str,
    /// The part of `UpdateExpression` that stores the token, for after `SET`.
    pub set: &'static str,
    /// An entry of `ExpressionAttributeNames`: the attribute that holds the token.
    pub name: (&'static str, String),
    /// An entry of `ExpressionAttributeValues`: the text of an `N`.
    pub value: (&'static str, String),
}

impl DynamoCondition {
    /// A condition on the attribute with this name.
    // F1
    #[must_use]
    pub fn new(attribute: &str, fence: Fence) -> Self {
        Self {
            condition: "attribute_not_exists(#fence) OR #fence <= :fence",
            set: "#fence = :fence",
            // A placeholder, so that no reserved word or special character matters.
            // F3
            name: ("#fence", attribute.into()),
            value: (":fence", fence.to_string()),
        }
    }
}
