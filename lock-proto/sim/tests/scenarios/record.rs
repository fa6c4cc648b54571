//! Invariants of a trace, on which pictures rely.

use std::collections::BTreeMap;

use lock_sim::trace::{Delivery, Point, TraceEvent};
use lock_sim::{Plan, Trace, scenarios};

#[test]
fn trace_is_ordered_and_lists_all_violations() {
    for scenario in scenarios() {
        for seed in 0..3 {
            let plan = Plan::from_seed(scenario, seed);
            let (outcome, trace) = plan.run_traced();
            let (name, entries) = (format!("{} seed {seed}", scenario.name), &trace.entries);
            assert_eq!((trace.clients, trace.nodes), (plan.setup.clients.len(), plan.setup.nodes.len()), "{name}");
            assert!(entries.windows(2).all(|pair| pair[0].at <= pair[1].at), "{name}");
            assert!(entries.iter().all(|entry| entry.at <= trace.end), "{name}");
            assert!(trace.calm.is_some_and(|calm| calm <= trace.end), "{name}");
            for message in &trace.messages {
                assert!(!message.label.is_empty() && message.label.len() < 400, "{name}: {message:?}");
                let (Delivery::Arrived(at) | Delivery::Lost(at)) = message.delivery else { continue };
                assert!(at >= message.sent && at <= trace.end, "{name}: {message:?}");
            }
            let found = entries.iter().filter(|entry| matches!(entry.what, TraceEvent::Violation(_))).count();
            assert_eq!(found, outcome.violations.len() + outcome.excused.len(), "{name}");
            let granted = points(&trace);
            assert_eq!(granted, outcome.grants, "{name}");
        }
    }
}

/// Counts the grants in a trace, and checks that the points of each acquisition are in order.
fn points(trace: &Trace) -> u64 {
    let mut granted = 0;
    // Stage of each one: requested, granted, claimed, released, over.
    let mut live = BTreeMap::new();
    for entry in &trace.entries {
        let TraceEvent::Lock { client, lock, point, .. } = &entry.what else { continue };
        let id = (*client, *lock);
        let (before, after) = match point {
            Point::Requested => (&[None][..], 0),
            Point::Granted { .. } => {
                granted += 1;
                (&[Some(0)][..], 1)
            }
            Point::Claimed => (&[Some(1)][..], 2),
            Point::Renewed { .. } => (&[Some(1), Some(2)][..], live.get(&id).copied().unwrap_or(0)),
            // A shutdown releases locks before it reports them as lost.
            Point::Lost(_) => (&[Some(1), Some(2), Some(3)][..], live.get(&id).copied().unwrap_or(0).max(2)),
            Point::Released => (&[Some(0), Some(1), Some(2), Some(3)][..], 3),
            // A client may stop before the guard of a lost hold is returned.
            Point::Ended(_) => (&[Some(0), Some(1), Some(2), Some(3)][..], 4),
        };
        let stands = live.insert(id, after);
        assert!(before.contains(&stands), "{entry:?} after {stands:?}");
    }
    granted
}
