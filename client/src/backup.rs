//! A cut of the broker's log that is kept while somebody copies it.

use std::time::Duration;

use tidegate_protocol::wire::{BackupBegin, BackupCut, ClientBody, ServerBody};
use tokio::time::timeout;

use crate::{
    Connection, Error,
    frames::{self, FrameReader},
};

/// Keeps what a cut names, as long as it lives and the connection stands.
#[derive(Debug)]
pub struct BackupPin {
    cut: BackupCut,
    send: quinn::SendStream,
    reader: FrameReader,
}

impl BackupPin {
    /// Asks on a stream of its own, whose side here stays open.
    pub(crate) async fn take(connection: &Connection, patience: Duration) -> Result<Self, Error> {
        let link = connection.link().await?;
        let asked = async {
            let (mut send, receive) = link.quic.open_bi().await?;
            let mut reader = FrameReader::new(receive, 0);
            let sent = send.write_all(&frames::encode(ClientBody::BackupBegin(BackupBegin {}))).await;
            match reader.next_message().await? {
                Some(ServerBody::BackupCut(cut)) => Ok(Self { cut, send, reader }),
                Some(ServerBody::Failure(failure)) => Err(Error::broker(failure)),
                Some(_) => Err(Error::Protocol { what: "an answer to another request" }),
                None => Err(sent.map_or_else(Error::from, |()| Error::StreamEnded { what: "without an answer" })),
            }
        };
        timeout(patience, asked).await.unwrap_or(Err(Error::Timeout { what: "a request", after: patience }))
    }

    /// What belongs to the copy.
    pub fn cut(&self) -> &BackupCut {
        &self.cut
    }

    /// Lets go, and waits until the broker has. A connection that is lost has let go too.
    pub async fn release(mut self, patience: Duration) {
        // Both fail only where the broker is gone or has stopped waiting.
        self.send.finish().ok();
        timeout(patience, self.reader.next_message()).await.ok();
    }
}
