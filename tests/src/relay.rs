//! Carries datagrams between a client and a broker: one address for brokers that come and go, and a line that can be cut.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{net::UdpSocket, sync::watch, task::JoinHandle};

/// A relay for one client.
#[derive(Debug)]
pub struct Relay {
    /// Where the client connects.
    pub addr: SocketAddr,
    target: watch::Sender<SocketAddr>,
    task: JoinHandle<()>,
}

impl Relay {
    /// A relay to a broker.
    pub async fn new(broker: SocketAddr) -> Self {
        let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let addr = front.local_addr().unwrap();
        let (target, targets) = watch::channel(broker);
        let task = tokio::spawn(carry(front, targets));
        Self { addr, target, task }
    }

    /// Cuts the line: once this returns, neither hears of the other any more.
    pub async fn cut(mut self) {
        self.task.abort();
        // An abort alone leaves a turn that runs just now its time, and what it carries arrives.
        drop((&mut self.task).await);
    }

    /// Carries to another broker from now on.
    pub fn target(&self, broker: SocketAddr) {
        self.target.send_replace(broker);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(front: Arc<UdpSocket>, mut targets: watch::Receiver<SocketAddr>) {
    let client: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    loop {
        let target = *targets.borrow_and_update();
        let back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        back.connect(target).await.unwrap();
        tokio::select! {
            () = pass(&front, &back, &client) => {}
            changed = targets.changed() => if changed.is_err() { return },
        }
    }
}

/// Runs until it is dropped. Errors are those of a broker that is gone (connection refused), and mean a lost datagram.
async fn pass(front: &UdpSocket, back: &UdpSocket, client: &Mutex<Option<SocketAddr>>) {
    let (mut out, mut home) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            received = front.recv_from(&mut out) => if let Ok((bytes, from)) = received {
                *client.lock().unwrap() = Some(from);
                drop(back.send(&out[..bytes]).await);
            },
            received = back.recv(&mut home) => if let Ok(bytes) = received {
                let to = *client.lock().unwrap();
                if let Some(to) = to {
                    drop(front.send_to(&home[..bytes], to).await);
                }
            },
        }
    }
}
