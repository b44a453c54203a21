//! Topics and plugins: one request, one answer. Nothing here is sent twice by itself.

use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::wire::{
    Activated, Chain, ChainExplain, ClientBody, KeyList, Keys, PluginList, PluginRollback, PluginSwap, Plugins,
    ProducerId, Reload, ServerBody, TopicCreate, TopicInfo, TopicList, TopicTruncate, TopicTruncated, Topics,
};

use crate::{BackupPin, Connection, Error};

/// Requests about topics and plugins. Changes of plugins need the admin credential.
#[derive(Debug, Clone)]
pub struct Admin {
    connection: Connection,
}

/// Sends a request and takes the one kind of answer that belongs to it.
macro_rules! ask {
    ($self:ident, $request:expr, $answer:ident, $patience:expr) => {
        match $self.connection.request($request, $patience).await? {
            ServerBody::$answer(answer) => Ok(answer),
            _ => Err(Error::Protocol { what: "an answer to another request" }),
        }
    };
}

impl Admin {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Topics that match a pattern (empty = all), as far as this client may see them.
    ///
    /// # Errors
    /// If the broker refuses or cannot be reached.
    pub async fn topics(&self, pattern: &str) -> Result<Topics, Error> {
        let list = TopicList { pattern: pattern.to_owned(), reserved: false };
        ask!(self, ClientBody::TopicList(list), Topics, self.patience())
    }

    /// As [`Self::topics`], with those of the broker itself (`$sys/…`). Needs the admin credential.
    ///
    /// # Errors
    /// If the broker refuses or cannot be reached.
    pub async fn topics_with_reserved(&self, pattern: &str) -> Result<Topics, Error> {
        let list = TopicList { pattern: pattern.to_owned(), reserved: true };
        ask!(self, ClientBody::TopicList(list), Topics, self.patience())
    }

    /// Keys of a topic that begin with a prefix, in their order, behind `after`: at most 10 000, and whether there are more.
    ///
    /// # Errors
    /// If there is no such topic, the broker refuses or cannot be reached.
    pub async fn keys(&self, topic: &str, prefix: &[u8], after: Option<&[u8]>) -> Result<Keys, Error> {
        let (topic, prefix, after) = (topic.to_owned(), prefix.to_vec(), after.map(<[u8]>::to_vec));
        let list = KeyList { topic, prefix, after, keys_max: 0 };
        ask!(self, ClientBody::KeyList(list), Keys, self.patience())
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// If the name is none, the topic exists, the broker refuses or cannot be reached.
    pub async fn create_topic(&self, name: &str) -> Result<TopicInfo, Error> {
        let create = TopicCreate { name: name.to_owned() };
        ask!(self, ClientBody::TopicCreate(create), TopicCreated, self.patience())
    }

    /// Removes a topic's records before an offset: durable, and gone for readers, when it is answered. Needs the admin
    /// credential.
    ///
    /// # Errors
    /// If there is no such topic, it does not go so far, the broker refuses or cannot be reached.
    pub async fn truncate_topic(&self, topic: &str, before: u64) -> Result<TopicTruncated, Error> {
        let truncate = TopicTruncate { topic: topic.to_owned(), before };
        ask!(self, ClientBody::TopicTruncate(truncate), TopicTruncated, self.patience())
    }

    /// The plugins of the tenant.
    ///
    /// # Errors
    /// If the broker refuses or cannot be reached.
    pub async fn plugins(&self) -> Result<Plugins, Error> {
        ask!(self, ClientBody::PluginList(PluginList {}), Plugins, self.patience())
    }

    /// Replaces a plugin's component. `based_on` is the generation it was judged by; 0 = whatever is live.
    ///
    /// # Errors
    /// If the component is refused (the old one stays), somebody was faster (`GENERATION_CHANGED`), the broker refuses or
    /// cannot be reached. After a loss or timeout, look at [`Self::plugins`] before trying again.
    pub async fn swap(&self, name: &str, component: Bytes, based_on: u64) -> Result<Activated, Error> {
        let swap = PluginSwap { name: name.to_owned(), component: component.into(), based_on };
        ask!(self, ClientBody::PluginSwap(swap), Activated, self.activation_patience())
    }

    /// Goes back to a plugin's version before; again, to the one before that.
    ///
    /// # Errors
    /// As [`Self::swap`].
    pub async fn rollback(&self, name: &str, based_on: u64) -> Result<Activated, Error> {
        let rollback = PluginRollback { name: name.to_owned(), based_on };
        ask!(self, ClientBody::PluginRollback(rollback), Activated, self.activation_patience())
    }

    /// Makes the broker read its `plugins.toml` again.
    ///
    /// # Errors
    /// As [`Self::swap`].
    pub async fn reload(&self, based_on: u64) -> Result<Activated, Error> {
        ask!(self, ClientBody::Reload(Reload { based_on }), Activated, self.activation_patience())
    }

    /// The effective chain of a topic.
    ///
    /// # Errors
    /// If the broker refuses or cannot be reached.
    pub async fn explain(&self, topic: &str) -> Result<Chain, Error> {
        let explain = ChainExplain { topic: topic.to_owned() };
        ask!(self, ClientBody::ChainExplain(explain), Chain, self.patience())
    }

    /// An id for a producer that no other has.
    ///
    /// # Errors
    /// If the broker refuses or cannot be reached.
    pub async fn producer_id(&self) -> Result<u64, Error> {
        let given = ask!(self, ClientBody::ProducerId(ProducerId {}), ProducerId, self.patience())?;
        if given.id == 0 {
            return Err(Error::Protocol { what: "producer id 0" });
        }
        Ok(given.id)
    }

    /// A cut of the whole log, kept until the pin goes. Needs the admin credential.
    ///
    /// # Errors
    /// If the broker keeps its log in memory, too many backups are under way, it refuses or cannot be reached.
    pub async fn backup(&self) -> Result<BackupPin, Error> {
        BackupPin::take(&self.connection, self.patience()).await
    }

    fn patience(&self) -> Duration {
        self.connection.options().timeouts.request
    }

    fn activation_patience(&self) -> Duration {
        self.connection.options().timeouts.activation
    }
}
