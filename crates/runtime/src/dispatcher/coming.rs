//! Nodes that join while the job runs. They begin as spares, without ranks: for ranks whose nodes are lost or leave.

use resurgo_protocol::{Command, Fact};
use resurgo_wire::console::Reply;
use resurgo_wire::control::{Nodes, ToAgent};

use super::Dispatcher;
use super::cluster::{Host, Launcher};
use super::events::Event;
use super::launching::Arrived;
use super::output::Owed;
use super::servers::reached;

impl Dispatcher {
    /// Takes in the agents that have arrived.
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

    /// Adds a host; `client` waits for it.
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
                        memories: 0,
                        rack: None,
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
        if self.verdict.is_some() {
            return arrived.end();
        }
        let Host { name, slots, .. } = arrived.host.clone();
        coming.launching.has_come(arrived.host.clone());
        self.output.node_comes(&arrived.host);
        plan.mesh.push(arrived.arrival.mesh.clone());
        plan.copies.push(arrived.arrival.copies);
        let number = self.agents.comes(arrived.into_node());
        let known_as = self.agents.node(number).knows_this_machine_as();
        self.owed.push(Owed::default());
        // It needs no connections to other nodes before it has ranks.
        let alone = |(node, addresses): (usize, &Vec<_>)| if node == number { addresses.clone() } else { Vec::new() };
        let mut job = coming.job.clone();
        // It reaches this machine, so there is an address.
        job.services = reached(&job.services, known_as).unwrap_or_default();
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
        for offer in self.images.shared.values() {
            node.queue(&ToAgent::Shared(offer.clone()));
        }
        // The other agents have the same order.
        node.queue(&ToAgent::Do(Command::Protocol {
            protocol: self.coordinator.protocol(),
            may_begin_again: self.coordinator.may_begin_again(),
        }));
        // Also to the new node, for the time when it has ranks.
        self.agents.queue_all(&known);
        self.bus.tell(Event::NodeCame {
            node: number,
            name: &name,
            slots,
        });
        self.coordinate(Fact::Up {
            node: number as u32,
            slots,
            spare: true,
            rack: None,
        });
        self.answer_for_host(&name, &Reply::Done(format!("node {name} is there")));
    }
}
