//! Nodes that come while the job runs. They have no ranks: they are spare ones, for ranks whose nodes are lost or leave.

use resurgo_protocol::{Command, Fact};
use resurgo_wire::console::Reply;
use resurgo_wire::control::{Nodes, ToAgent};

use super::Dispatcher;
use super::cluster::{Host, Launcher};
use super::events::Event;
use super::launching::Arrived;
use super::output::Owed;

impl Dispatcher {
    /// Looks who has come.
    pub(super) fn mind_coming(&mut self) {
        let Some(coming) = &mut self.coming else { return };
        coming.launching.mind();
        let missing = coming.launching.refuse_missing();
        let arrived = coming.launching.arrivals();
        for (name, why) in missing {
            self.answer_for_host(&name, &Reply::Refused(format!("node {name}: {why}")));
        }
        for arrived in arrived {
            self.node_comes(arrived);
        }
    }

    /// A host is to be added, which `client` waits for.
    pub(super) fn add_host(&mut self, client: u64, name: String, slots: u32) {
        let refused = match &mut self.coming {
            None => Some("it runs on one node, or has been resumed; only others take hosts".to_string()),
            Some(_) if self.verdict.is_some() => Some("it is ending".to_string()),
            Some(coming) => match coming.launching.launcher() {
                Launcher::Join => Some("its nodes join by themselves; type resurgo join there".to_string()),
                _ if coming.launching.is_known(&name) => Some(format!("{name} is one of its nodes already")),
                launcher => {
                    coming.clients.push((name.clone(), client));
                    coming.launching.add(Host {
                        name,
                        launcher,
                        slots,
                        spare: true,
                    });
                    None
                }
            },
        };
        if let Some(why) = refused {
            self.front.console.answer(client, &Reply::Refused(why));
        }
    }

    fn answer_for_host(&mut self, name: &str, reply: &Reply) {
        let Some(coming) = &mut self.coming else { return };
        let waiting: Vec<_> = coming.clients.extract_if(.., |(host, _)| host == name).collect();
        for (_, client) in waiting {
            self.front.console.answer(client, reply);
        }
    }

    fn node_comes(&mut self, arrived: Arrived) {
        let Some((coming, plan)) = self.coming.as_mut().zip(self.plan.as_mut()) else {
            return;
        };
        if self.verdict.is_some() || !self.spawning.worlds.is_empty() {
            return arrived.end();
        }
        let Host { name, slots, .. } = arrived.host.clone();
        coming.launching.has_come(arrived.host.clone());
        plan.mesh.push(arrived.arrival.mesh.clone());
        plan.copies.push(arrived.arrival.copies);
        let number = self.agents.comes(arrived.into_node());
        self.owed.push(Owed::default());
        // It has nothing to do with others before it has ranks.
        let alone = |(node, addresses): (usize, &Vec<_>)| if node == number { addresses.clone() } else { Vec::new() };
        let mut job = coming.job.clone();
        job.nodes = Some(Nodes {
            own: number as u32,
            mesh: plan.mesh.iter().enumerate().map(alone).collect(),
            ..plan.clone()
        });
        let known = ToAgent::Known {
            mesh: plan.mesh.clone(),
            copies: plan.copies.clone(),
        };
        let node = self.agents.node(number);
        node.queue(&ToAgent::Launch(job));
        // As others have been told.
        node.queue(&ToAgent::Do(Command::Protocol {
            protocol: self.coordinator.protocol(),
            may_begin_again: self.coordinator.may_begin_again(),
        }));
        self.agents.tell_others(number, &known);
        self.bus.tell(Event::NodeCame {
            node: number,
            name: &name,
            slots,
        });
        self.coordinate(Fact::Up {
            node: number as u32,
            slots,
            spare: true,
        });
        self.answer_for_host(&name, &Reply::Done(format!("node {name} is there")));
    }
}
