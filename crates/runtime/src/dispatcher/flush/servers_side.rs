//! What follows from the news of checkpoint servers that the job has started.

use super::servers::News;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::events::Event;

impl Dispatcher {
    /// Processes here that belong to the job's checkpoint servers.
    pub(in crate::dispatcher) fn store_pids(&self) -> Vec<u32> {
        self.images
            .flushes
            .as_ref()
            .map_or(Vec::new(), |flushes| flushes.servers.pids())
    }

    /// Takes up what has become of the job's checkpoint servers.
    pub(super) fn mind_store_servers(&mut self) {
        let Some(flushes) = &mut self.images.flushes else {
            return;
        };
        let news = flushes.servers.news();
        if news.is_empty() {
            return;
        }
        for (number, news) in news {
            let server = &mut flushes.servers.all[number];
            let (address, place) = (&server.address, server.place);
            match news {
                News::Serves { pid, again } => {
                    self.bus.tell(Event::StoreServerStarted {
                        server: address,
                        pid,
                        again,
                    });
                    if std::mem::take(&mut server.is_away) {
                        flushes.is_back(place);
                    }
                }
                News::Lost { reason } => self.bus.tell(Event::StoreServerLost {
                    server: address,
                    reason: &reason,
                }),
                News::Away { reason } => {
                    self.bus.tell(Event::StoreServerAway {
                        server: address,
                        reason: &reason,
                    });
                    server.is_away = true;
                    flushes.is_away(place);
                }
            }
        }
        self.tell_whole();
    }
}
