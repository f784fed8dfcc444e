//! What a run qualifies: an agent without a model, a config of ours, or any endpoint.

use super::cheats::{Bait, Cheat};
use super::endpoint::Endpoint;
use super::http::HttpEndpoint;
use super::own_server::OwnServer;
use super::scripted::ScriptedAgent;
use super::task::Task;
use std::path::Path;

/// What answers the requests of a run.
#[derive(Debug)]
pub enum Subject {
    /// An agent without a model.
    Agent(ScriptedAgent),
    /// A dishonest one.
    Cheat(Box<Cheat>, Bait),
    /// Our own server.
    Own(Box<OwnServer>),
    /// Somebody's server, and the model's name there.
    Endpoint(HttpEndpoint, String),
}

impl Subject {
    /// An agent or a cheat by its name.
    ///
    /// # Errors
    /// When there is none; bait that cannot be laid out.
    pub fn scripted(name: &str, cheats: &[Cheat]) -> anyhow::Result<Self> {
        if let Some(agent) = ScriptedAgent::ALL.into_iter().find(|agent| agent.name() == name) {
            return Ok(Self::Agent(agent));
        }
        if let Some(cheat) = cheats.iter().find(|cheat| cheat.name == name || cheat.kind == name) {
            return Ok(Self::Cheat(Box::new(cheat.clone()), Bait::new()?));
        }
        let agents = ScriptedAgent::ALL.iter().map(|agent| agent.name());
        let known: Vec<&str> = agents.chain(cheats.iter().map(|cheat| cheat.name.as_str())).collect();
        anyhow::bail!("no agent is called {name:?}: there are {}", known.join(", "))
    }

    /// The model's name in requests.
    pub fn model(&self) -> &str {
        match self {
            Self::Agent(_) | Self::Cheat(..) => "scripted",
            Self::Own(server) => &server.about.model,
            Self::Endpoint(_, model) => model,
        }
    }

    /// The server behind it, if there is one.
    pub fn http(&self) -> Option<&HttpEndpoint> {
        match self {
            Self::Agent(_) | Self::Cheat(..) => None,
            Self::Own(server) => Some(&server.endpoint),
            Self::Endpoint(endpoint, _) => Some(endpoint),
        }
    }

    /// What answers at a task.
    pub fn endpoint(&self, task: &Task, fixtures: &Path) -> Box<dyn Endpoint> {
        match self {
            Self::Agent(agent) => Box::new(agent.script(task)),
            Self::Cheat(cheat, bait) => Box::new(cheat.script(task, fixtures, bait)),
            Self::Own(server) => Box::new(server.endpoint.clone()),
            Self::Endpoint(endpoint, _) => Box::new(endpoint.clone()),
        }
    }
}
