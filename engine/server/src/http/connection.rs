//! Accepting connections, their limits in time and size, and the end of them all.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::delivery::{Delivering, Outbox};
use crate::serve::Limits;

/// How often the wish to stop is looked for.
const STOP_INTERVAL: Duration = Duration::from_millis(50);
/// After an accept that failed (no file descriptors left, say), before the next one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections until `stop` says so, then lets requests under way end, for `limits.shutdown_time` at most.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    limits: &Limits,
    stop: impl Fn() -> bool,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let mut ticks = tokio::time::interval(STOP_INTERVAL);
    while !stop() {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            _ = ticks.tick() => continue,
        };
        // Past the limit a connection is closed at once, rather than left to wait unheard.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let connection = graceful.watch(connection(stream, router.clone(), limits));
        tokio::spawn(async move {
            // A client that breaks off is no news.
            let _broken = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _late = tokio::time::timeout(limits.shutdown_time, graceful.shutdown()).await;
    Ok(())
}

fn connection(
    stream: TcpStream,
    router: Router,
    limits: &Limits,
) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
    // Without it a token waits for the next one. It fails only on a connection that is gone.
    let _gone = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_time));
    let outbox = Outbox::default();
    let stream = Delivering::new(Box::pin(stream), outbox.clone());
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_headers(limits.headers)
        .max_buf_size(limits.header_bytes);
    let router = TowerToHyperService::new(router.layer(Extension(outbox)));
    builder.serve_connection(TokioIo::new(stream), router)
}
