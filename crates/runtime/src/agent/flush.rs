//! Copies of this node's image files into places of the job ([`crate::flush`]).

mod agent_side;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::eventfd::{EfdFlags, EventFd};
use resurgo_store::Generation;
use resurgo_wire::replica::Offer;

use super::ship::IMAGES;
use crate::fetch::{self, Fetcher};
use crate::flush::{Answer, Site, Worker};

/// A thread for each place of the job.
pub(super) struct Flushes {
    workers: Vec<Worker>,
    sent: Vec<OnTheirWay>,
    answers: Receiver<(usize, Answer)>,
    /// What brings images back, and what it has brought.
    fetcher: Fetcher,
    fetched: Receiver<fetch::Answer>,
    bell: Arc<EventFd>,
}

/// Files for a generation in a place.
struct OnTheirWay {
    place: usize,
    generation: Generation,
    names: Vec<OsString>,
    /// Of the images of the wave among them.
    offers: Vec<Offer>,
}

/// What has come is the image that it should be.
fn check(file: File, order: &fetch::Order) -> Result<(), String> {
    match &order.image {
        Some(offer) => (IMAGES.is_whole)(file, offer),
        None => Ok(()),
    }
}

impl Flushes {
    /// `directory`: where the node's image files are.
    fn start(sites: Vec<Site>, directory: File) -> io::Result<Flushes> {
        let (way, answers) = channel();
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (bring, fetched) = channel();
        let ring = bell.clone();
        let fetcher = Fetcher::start(sites.clone(), directory, check, move |answer| {
            if bring.send(answer).is_ok() {
                let _ = ring.write(1);
            }
        })?;
        let workers = sites.into_iter().enumerate().map(|(place, site)| {
            let (way, bell) = (way.clone(), bell.clone());
            Worker::start(site, move |answer| {
                // The agent is gone, or reads it.
                if way.send((place, answer)).is_ok() {
                    let _ = bell.write(1);
                }
            })
        });
        let workers = workers.collect::<io::Result<_>>()?;
        Ok(Flushes {
            workers,
            sent: Vec::new(),
            answers,
            fetcher,
            fetched,
            bell,
        })
    }
}

/// Readable when there are answers.
impl AsFd for Flushes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
