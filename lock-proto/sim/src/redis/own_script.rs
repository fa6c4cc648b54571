//! Scripts of other clients: Rust functions in place of a script's text, or an interpreter.

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};

use super::Node;
use super::command::{CommandContext, Running};
use super::reply::RespReply;
use super::sha1;

/// A Rust function in place of a Lua script: gets `redis.call`, `KEYS` and `ARGV`, and returns the
/// script's result. An `Err` is an error that ends the script, so `call(…)?` is `redis.call`.
///
/// Like a script, it runs at once and undisturbed, and what it wrote before an error stays.
pub type ScriptFn = fn(&mut ScriptCalls<'_>, &[&[u8]], &[&[u8]]) -> Result<RespReply, RespReply>;

/// The commands of a running script.
#[derive(Debug)]
pub struct ScriptCalls<'a> {
    node: &'a mut Node,
    context: &'a mut CommandContext,
}

impl<'a> ScriptCalls<'a> {
    pub(super) const fn new(node: &'a mut Node, context: &'a mut CommandContext) -> Self {
        Self { node, context }
    }

    /// Executes a command: `redis.call`.
    ///
    /// # Errors
    ///
    /// The server's error.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<RespReply, RespReply> {
        let reply = self.try_call(args);
        if reply.is_error() { Err(reply) } else { Ok(reply) }
    }

    /// Executes a command, and returns an error like any other reply: `redis.pcall`.
    pub fn try_call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> RespReply {
        let args: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        if args.is_empty() {
            return RespReply::error("ERR Please specify at least one argument for this redis.call() call");
        }
        self.node.run(self.context, &args)
    }
}

/// Runs scripts by their text. A simulated server has no interpreter of its own; a program that
/// needs one can attach it by [`NodeConfig::interpreter`](super::NodeConfig::interpreter).
pub trait Interpreter: fmt::Debug + Send + Sync {
    /// Checks the syntax.
    ///
    /// # Errors
    ///
    /// The compiler's message.
    fn compile(&self, source: &[u8]) -> Result<(), String>;

    /// Runs the script with its keys and arguments.
    ///
    /// # Errors
    ///
    /// The error that the client gets.
    fn run(
        &self,
        source: &[u8],
        calls: &mut ScriptCalls<'_>,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<RespReply, RespReply>;
}

/// The scripts that a server runs besides those of this library.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnScripts {
    functions: Vec<(Arc<[u8]>, Arc<str>, ScriptFn)>,
    interpreter: Option<Arc<dyn Interpreter>>,
}

/// A script that was found.
#[derive(Clone)]
pub(super) enum OwnScript {
    Function(ScriptFn),
    Source(Arc<dyn Interpreter>, Arc<[u8]>),
}

// The text identifies a function.
impl PartialEq for OwnScripts {
    fn eq(&self, other: &Self) -> bool {
        let texts = |scripts: &Self| scripts.functions.iter().map(|(text, ..)| text.clone()).collect::<Vec<_>>();
        texts(self) == texts(other) && self.interpreter.is_some() == other.interpreter.is_some()
    }
}

impl Eq for OwnScripts {}

impl Hash for OwnScripts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.functions.iter().for_each(|(text, ..)| text.hash(state));
        self.interpreter.is_some().hash(state);
    }
}

impl OwnScripts {
    pub(super) fn add(&mut self, source: &str, run: ScriptFn) {
        let name = sha1::hex(source.as_bytes()).into();
        self.functions.retain(|(text, ..)| **text != *source.as_bytes());
        self.functions.push((source.as_bytes().into(), name, run));
    }

    pub(super) fn set_interpreter(&mut self, interpreter: Arc<dyn Interpreter>) {
        self.interpreter = Some(interpreter);
    }

    /// Finds a script by its text, and returns its SHA1.
    pub(super) fn compile(&self, source: &[u8]) -> Result<(OwnScript, Arc<str>), RespReply> {
        if let Some((_, name, run)) = self.functions.iter().find(|(text, ..)| **text == *source) {
            return Ok((OwnScript::Function(*run), name.clone()));
        }
        let Some(interpreter) = &self.interpreter else { return Err(UNKNOWN) };
        interpreter.compile(source).map_err(|what| {
            let what = what.replace(['\r', '\n'], " ");
            RespReply::Error(format!("ERR Error compiling script (new function): {what}").into())
        })?;
        let name = sha1::hex(source).into();
        Ok((OwnScript::Source(interpreter.clone(), source.into()), name))
    }
}

/// The error for an unknown script, in the form of a Lua syntax error.
const UNKNOWN: RespReply = RespReply::error(
    "ERR Error compiling script (new function): user_script:1: a simulated server runs no Lua: register a Rust function for \
     this text by NodeConfig::script",
);

impl Node {
    /// Loads a script into the cache, as `SCRIPT LOAD` does, and returns it with its SHA1.
    pub(super) fn load_own(&mut self, source: &[u8]) -> Result<(OwnScript, Arc<str>), RespReply> {
        let (script, name) = self.config.scripts.compile(source)?;
        self.own_scripts.insert(Box::from(&*name), source.to_owned().into());
        Ok((script, name))
    }

    /// Returns the text of a cached script.
    pub(super) fn own_source(&self, sha1: &[u8]) -> Option<Arc<[u8]>> {
        let name = core::str::from_utf8(sha1).ok()?.to_ascii_lowercase();
        self.own_scripts.get(&*name).cloned()
    }

    pub(super) fn run_own(
        &mut self,
        context: &CommandContext,
        script: &OwnScript,
        keys: &[&[u8]],
        argv: &[&[u8]],
    ) -> RespReply {
        let mut inner = CommandContext { script: Some(Running::default()), ..context.clone() };
        let mut calls = ScriptCalls::new(self, &mut inner);
        let done = match script {
            OwnScript::Function(run) => run(&mut calls, keys, argv),
            OwnScript::Source(interpreter, source) => interpreter.run(source, &mut calls, keys, argv),
        };
        let (Ok(reply) | Err(reply)) = done;
        if reply == RespReply::Later { RespReply::Nil } else { reply }
    }
}
