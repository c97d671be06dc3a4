//! The nodes that a command line asks for, and which ranks run on which.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::unistd::gethostname;
use resurgo_protocol::{Protocol, placement};
use resurgo_runtime::dispatcher::{Cluster, Host, Join, Launcher, Listeners, StoreHost};
use resurgo_runtime::sys;
use resurgo_store::{Described, Location};
use resurgo_wire::control::Preemption;
use resurgo_wire::handshake::Server;

use crate::check::Refusal;
use crate::join;
use crate::options::hosts::{Parts, Slots};
use crate::options::{Nodes, Options};

/// The nodes of a job. None: there is one, this machine. Relative file names start at `here`.
pub fn cluster(
    options: &Options,
    here: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Cluster>, Refusal> {
    let refused = |text: String| Refusal::new(2, text);
    let asked = &options.nodes;
    let by_slurm = variable("SLURM_JOB_ID").is_some();
    let mut parts = Parts::of(options, here, variable).map_err(refused)?;
    if asked.launcher == Some(Launcher::Join) {
        check(options)?;
        return joined(options, &parts.all(), here).map(Some);
    }
    let added_by = match asked.count {
        Some(_) => Launcher::Fork,
        None if by_slurm => Launcher::Slurm,
        None => asked.launcher.unwrap_or(Launcher::Ssh),
    };
    add_this_machine(&mut parts, options);
    let named = parts.all();
    let (hosts, turns) = match asked.count {
        Some(_) if !named.is_empty() => {
            let option = &named[0].option;
            return Err(refused(format!(
                "--nodes makes nodes of this machine, and {option} names hosts; leave one of them out"
            )));
        }
        Some(nodes) => of_this_machine(asked, nodes, options.size())?,
        None => of_hosts(asked, &named, by_slurm)?,
    };
    let kept = without_spares(asked, hosts.len()).map_err(refused)?;
    let turns = parts.divide(turns);
    let Some(of_rank) = nodes_of_ranks(options, &turns, kept)? else {
        return Ok(None);
    };
    // Hosts beyond the ranks replace others, if the user has named them. Of a batch job's hosts others may be in use.
    let is_allotted = named.iter().all(Slots::is_allotted) && asked.count.is_none();
    let replaces = |node: &u32| !is_allotted || *node >= kept || asked.may_miss > 0;
    let is_used = |node: &u32| replaces(node) || of_rank.contains(node);
    let used: Vec<u32> = (0..hosts.len() as u32).filter(is_used).collect();
    let number = |node: &u32| used.iter().position(|used| used == node).unwrap_or(0) as u32;
    let of_rank: Vec<u32> = of_rank.iter().map(number).collect();
    let host = |node: &u32| {
        let (name, launcher) = hosts[*node as usize].clone();
        Host {
            name,
            launcher,
            slots: slots_of(asked, &turns, *node),
            spare: *node >= kept,
            memories: 0,
            rack: rack_of(&named, &hosts[*node as usize].0),
        }
    };
    let mut hosts: Vec<Host> = used.iter().map(host).collect();
    hosts.extend(memory_hosts(options, by_slurm)?);
    match &hosts[..] {
        [only] if only.launcher == Launcher::Fork => return Ok(None),
        _ => check(options)?,
    }
    Ok(Some(Cluster {
        hosts,
        launcher: added_by,
        may_miss: asked.may_miss,
        join: None,
        preemption: preemption(asked, here),
        interface: asked.interface.clone(),
        launcher_file: asked.launcher_file.clone(),
        of_rank,
        lease: asked.lease,
        hold: asked.hold,
        is_encrypted: asked.is_encrypted,
        files: Vec::new(),
        limits: Vec::new(),
    }))
}

/// The first rack that a line names for this host.
fn rack_of(named: &[Slots], host: &str) -> Option<String> {
    let mut racks = named.iter().filter(|slots| slots.host == host);
    racks.find_map(|slots| slots.rack.clone())
}

/// How many of these nodes have ranks at first.
fn without_spares(asked: &Nodes, nodes: usize) -> Result<u32, String> {
    let (spares, kept) = (asked.spares, nodes.saturating_sub(asked.spares));
    if spares > 0 && kept == 0 {
        return Err(format!(
            "--spares {spares}: of {} nodes one at least must be left for ranks; name more hosts, or write --nodes {}",
            nodes.max(1),
            spares + 1
        ));
    }
    Ok(kept as u32)
}

/// Turns in common, and those of each program.
type OfPrograms = (Vec<(u32, u32)>, Vec<Vec<(u32, u32)>>);

/// The node of each rank; `kept`: so many nodes have ranks at first. None: no host is named.
fn nodes_of_ranks(options: &Options, (common, own): &OfPrograms, kept: u32) -> Result<Option<Vec<u32>>, Refusal> {
    let left = |turns: &Vec<(u32, u32)>| {
        let left: Vec<(u32, u32)> = turns.iter().copied().filter(|(node, _)| *node < kept).collect();
        match left.is_empty() && !turns.is_empty() {
            true => Err(Refusal::new(
                2,
                format!(
                    "--spares {}: all hosts of a program would be spares; name more hosts behind them, or leave it out",
                    options.nodes.spares
                ),
            )),
            false => Ok(left),
        }
    };
    let common = left(common)?;
    let programs = options.programs.iter().zip(own);
    let programs = programs.map(|(program, own)| left(own).map(|turns| (program.ranks, turns)));
    let programs: Vec<(usize, Vec<(u32, u32)>)> = programs.collect::<Result<_, Refusal>>()?;
    Ok(placement::of_programs(&common, &programs, options.nodes.per_node))
}

/// How many ranks a node has room for. Programs that name the same one share its slots.
fn slots_of(asked: &Nodes, (common, own): &OfPrograms, node: u32) -> u32 {
    let slots = |turns: &Vec<(u32, u32)>| -> u32 {
        let turns = turns.iter().filter(|(of, _)| *of == node);
        turns.map(|(_, slots)| slots).sum()
    };
    let most = own.iter().map(slots).max().unwrap_or(0).max(slots(common));
    asked.per_node.unwrap_or(most)
}

/// Where only channel memories are elsewhere, or only programs with hosts of their own, the other ranks are here.
fn add_this_machine(parts: &mut Parts, options: &Options) {
    let are_others_elsewhere = parts.has_own() || !options.memories.hosts.is_empty();
    if parts.common.is_empty() && options.nodes.count.is_none() && are_others_elsewhere {
        let others = options.programs.iter().filter(|program| program.hosts.is_empty());
        parts.common.push(Slots {
            host: "localhost".to_string(),
            count: others.map(|program| program.ranks).sum::<usize>() as u32,
            rack: None,
            option: "-hosts".to_string(),
        });
    }
}

/// Nodes that run channel memories.
fn memory_hosts(options: &Options, by_slurm: bool) -> Result<Vec<Host>, Refusal> {
    let host = |(name, count): &(String, u32)| {
        let slots = Slots {
            host: name.clone(),
            count: 0,
            rack: None,
            option: "--channel-memory-hosts".to_string(),
        };
        Ok(Host {
            name: name.clone(),
            launcher: launcher_of(&options.nodes, &slots, by_slurm)?,
            slots: 0,
            spare: false,
            memories: *count,
            rack: None,
        })
    };
    options.memories.hosts.iter().map(host).collect()
}

/// The hosts on which the job starts checkpoint servers for these places.
pub fn of_stores(
    options: &Options,
    places: &[String],
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<StoreHost>, Refusal> {
    let by_slurm = variable("SLURM_JOB_ID").is_some();
    let described = places.iter().filter_map(|place| Described::parse(place).ok());
    let started = described.filter(|place| place.start.is_some());
    let addresses = started.flat_map(|place| match place.location {
        Location::Servers(addresses) => addresses,
        _ => Vec::new(),
    });
    let host = |address: String| {
        let slots = Slots {
            host: StoreHost::parts(&address).0.to_string(),
            count: 0,
            rack: None,
            option: "--store".to_string(),
        };
        let launcher = launcher_of(&options.nodes, &slots, by_slurm)?;
        Ok(StoreHost { address, launcher })
    };
    addresses.map(host).collect()
}

/// The cluster of a job whose nodes join by themselves.
fn joined(options: &Options, named: &[Slots], here: &Path) -> Result<Cluster, Refusal> {
    let asked = &options.nodes;
    let refused = |text: String| Refusal::new(2, text);
    let with = named.iter().find(|named| !named.is_allotted());
    let with = with.map(|named| named.option.as_str());
    let with = with
        .or(asked.count.map(|_| "--nodes"))
        .or((asked.may_miss > 0).then_some("--allow-missing"))
        .or((!options.memories.hosts.is_empty()).then_some("--channel-memory-hosts"));
    if let Some(option) = with {
        return Err(refused(format!(
            "-launcher join waits for whoever joins; leave {option} out"
        )));
    }
    let file = asked.token_file.as_ref().map(|file| here.join(file));
    let token = match &file {
        Some(file) => token_in(file).map_err(|why| refused(format!("--join-token-file {}: {why}", file.display())))?,
        None => sys::token().map_err(|error| refused(format!("no token can be made: {error}")))?,
    };
    Ok(Cluster {
        hosts: Vec::new(),
        launcher: Launcher::Join,
        may_miss: 0,
        join: Some(Join {
            token,
            token_file: file,
            port: asked.join_port,
            ranks: options.size(),
            per_node: asked.per_node,
            spares: asked.spares,
        }),
        preemption: preemption(asked, here),
        interface: asked.interface.clone(),
        launcher_file: None,
        of_rank: Vec::new(),
        is_encrypted: asked.is_encrypted,
        lease: asked.lease,
        hold: asked.hold,
        files: Vec::new(),
        limits: Vec::new(),
    })
}

/// How nodes hear that they will be taken away.
fn preemption(asked: &Nodes, here: &Path) -> Preemption {
    let file = asked.preempt_file.as_ref();
    Preemption {
        signal: asked.preempt_signal.map(|signal| signal as i32),
        file: file.map(|file| here.join(file).into_os_string()),
        url: asked.preempt_url.clone(),
    }
}

/// The token in the file. If there is no file, writes one that only the user can read.
fn token_in(file: &Path) -> Result<String, String> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    match made {
        Ok(mut made) => {
            let token = sys::token().map_err(|error| error.to_string())?;
            writeln!(made, "{token}").map_err(|error| error.to_string())?;
            Ok(token)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => join::of_file(file),
        Err(error) => Err(error.to_string()),
    }
}

/// Refuses what does not work on several nodes.
fn check(options: &Options) -> Result<(), Refusal> {
    let given = [
        (options.resume_if_any, "--resume-if-any"),
        (options.ends.time_limit.is_some(), "--time-limit"),
    ];
    let suspends = given
        .into_iter()
        .find(|(given, _)| *given && options.protocol == Protocol::Hierarchical);
    if let Some((_, name)) = suspends {
        return Err(Refusal::new(
            2,
            format!(
                "{name}: with --protocol hierarchical a job on several nodes cannot be suspended; leave it out, or run with \
                 --protocol auto"
            ),
        ));
    }
    // Channel memories have files of their own.
    match options.log.spill_directory.is_some() && options.protocol != Protocol::ChannelMemory {
        false => Ok(()),
        true => Err(Refusal::new(
            2,
            "--spill-dir does not work on several nodes yet: ranks of other nodes cannot read what a node has written to it; \
             raise --log-memory instead, or run on one node (-hosts localhost)",
        )),
    }
}

/// The servers of the job. If it has ranks on other machines, they listen on every address unless the user gives one.
pub fn servers(options: &Options, cluster: Option<&Cluster>) -> Result<Vec<Listeners>, Refusal> {
    let mut servers = options.servers();
    if cluster.is_none_or(Cluster::is_here) {
        return Ok(servers);
    }
    for server in servers.iter_mut().filter(|server| server.first.ip().is_loopback()) {
        let option = match server.kind {
            Server::ChannelMemory => "channel-memory",
            _ => "event-logger",
        };
        if options.has(option) {
            return Err(Refusal::new(
                2,
                format!(
                    "--{option} {}: ranks on other machines cannot reach this address; name one of this machine that they \
                     can, or leave it out",
                    server.first
                ),
            ));
        }
        server.first = (Ipv6Addr::UNSPECIFIED, 0).into();
    }
    Ok(servers)
}

/// Hosts with the launcher of their agents, and (host, slots) turn by turn.
type Turns = (Vec<(String, Launcher)>, Vec<(u32, u32)>);

fn of_this_machine(asked: &Nodes, nodes: usize, ranks: usize) -> Result<Turns, Refusal> {
    if let Some(launcher @ (Launcher::Ssh | Launcher::Slurm)) = asked.launcher {
        let name = Launcher::NAMES[launcher as usize];
        return Err(Refusal::new(
            2,
            format!("--nodes makes nodes of this machine, and -launcher {name} is for others; leave one of them out"),
        ));
    }
    let hosts = (0..nodes).map(|node| (node.to_string(), Launcher::Fork)).collect();
    let slots = ranks.div_ceil(nodes.saturating_sub(asked.spares).max(1)) as u32;
    Ok((hosts, (0..nodes as u32).map(|node| (node, slots)).collect()))
}

fn of_hosts(asked: &Nodes, named: &[Slots], by_slurm: bool) -> Result<Turns, Refusal> {
    let (mut hosts, mut turns): Turns = Default::default();
    let mut here = None;
    for slots in named {
        let is_here = is_this_machine(&slots.host);
        let node = match hosts.iter().position(|(name, _)| *name == slots.host) {
            Some(node) => node as u32,
            None if is_here && here.is_some() => here.unwrap_or(0),
            None => {
                let launcher = launcher_of(asked, slots, by_slurm)?;
                hosts.push((slots.host.clone(), launcher));
                hosts.len() as u32 - 1
            }
        };
        if is_here {
            here = Some(node);
        }
        turns.push((node, slots.count));
    }
    // A job of Slurm on this machine alone needs no steps.
    if hosts.len() == 1 && here.is_some() && asked.launcher.is_none() {
        hosts[0].1 = Launcher::Fork;
    }
    Ok((hosts, turns))
}

/// What starts the agent of a host.
fn launcher_of(asked: &Nodes, slots: &Slots, by_slurm: bool) -> Result<Launcher, Refusal> {
    // In a job of Slurm, every process should be one of its steps.
    let all_by_slurm = asked.launcher.map_or(by_slurm, |launcher| launcher == Launcher::Slurm);
    Ok(match asked.launcher {
        _ if is_this_machine(&slots.host) && !all_by_slurm => Launcher::Fork,
        Some(Launcher::Fork) => return Err(not_this_machine(slots)),
        _ if all_by_slurm => Launcher::Slurm,
        _ => Launcher::Ssh,
    })
}

fn not_this_machine(slots: &Slots) -> Refusal {
    let Slots { host, option, .. } = slots;
    Refusal::new(
        2,
        format!("{option}: {host} is not this machine, where -launcher fork starts all; write -launcher ssh"),
    )
}

fn is_this_machine(name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        return is_own(address);
    }
    let name = name.to_ascii_lowercase();
    let own = gethostname()
        .map(|own| own.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default();
    if ["localhost", "localhost.localdomain"].contains(&name.as_str()) || is_same(&name, &own) {
        return true;
    }
    let sane = name.len() < 254
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let addresses = sane.then(|| (name.as_str(), 0).to_socket_addrs().ok()).flatten();
    addresses.into_iter().flatten().any(|address| is_own(address.ip()))
}

/// Names of one host, with or without its domain.
fn is_same(name: &str, own: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    !name.is_empty() && (name == own || (short(name) == short(own) && !(name.contains('.') && own.contains('.'))))
}

/// Whether an address is this machine's: only to such an address a socket can be bound.
fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Request, parse};

    /// Each node as `name launcher ranks`, separated by commas.
    fn found(line: &str, slurm: &[(&str, &str)]) -> Result<String, String> {
        let variable = |name: &str| {
            let found = slurm.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let words = line.split_whitespace().map(OsString::from).collect();
        let Request::Run(options) = parse(words, &[], variable)? else {
            return Err("no job".to_string());
        };
        let cluster = cluster(&options, Path::new("/"), variable).map_err(|refusal| refusal.text)?;
        let Some(cluster) = cluster else {
            return Ok(format!("here {}", options.size()));
        };
        let of = |node: usize| cluster.of_rank.iter().filter(|of| **of == node as u32).count();
        let nodes = cluster.hosts.iter().enumerate();
        let nodes: Vec<String> = nodes
            .map(|(number, host)| {
                format!(
                    "{} {} {}",
                    host.name,
                    Launcher::NAMES[host.launcher as usize],
                    of(number)
                )
            })
            .collect();
        Ok(nodes.join(","))
    }

    #[test]
    fn hosts_become_nodes() {
        let own = gethostname().unwrap().to_string_lossy().into_owned();
        for (line, expected) in [
            ("./a", "here 1"),
            ("-n 3 ./a", "here 3"),
            ("-hosts localhost:4 ./a", "here 4"),
            ("-hosts localhost,127.0.0.1 -launcher ssh ./a", "here 2"),
            (&format!("-hosts {own}:2,localhost -n 5 ./a"), "here 5"),
            ("-hosts a.invalid:2,b.invalid:3 ./a", "a.invalid ssh 2,b.invalid ssh 3"),
            (
                "-hosts localhost,b.invalid -ppn 2 ./a",
                "localhost fork 2,b.invalid ssh 2",
            ),
            (
                "-hosts a.invalid,b.invalid,a.invalid -n 3 ./a",
                "a.invalid ssh 2,b.invalid ssh 1",
            ),
            (
                "-hosts a.invalid:4,b.invalid -n 3 ./a",
                "a.invalid ssh 3,b.invalid ssh 0",
            ),
            (
                "-hosts a.invalid,b.invalid -launcher slurm ./a",
                "a.invalid slurm 1,b.invalid slurm 1",
            ),
            ("--nodes 1 -n 4 ./a", "here 4"),
            ("--nodes 2 -n 5 ./a", "0 fork 3,1 fork 2"),
            ("--nodes 2 -ppn 1 -n 3 ./a", "0 fork 2,1 fork 1"),
            ("--nodes 3 ./a", "0 fork 1,1 fork 1,2 fork 1"),
            ("--nodes 3 --spares 1 -n 4 ./a", "0 fork 2,1 fork 2,2 fork 0"),
            ("--nodes 3 --allow-missing 1 -n 1 ./a", "0 fork 1,1 fork 0,2 fork 0"),
            ("--nodes 3 --spares 2 ./a", "0 fork 1,1 fork 0,2 fork 0"),
            (
                "-hosts a.invalid:2,b.invalid:2,c.invalid:2 --spares 1 ./a",
                "a.invalid ssh 2,b.invalid ssh 2,c.invalid ssh 0",
            ),
            (
                "-hosts a.invalid -n 1 ./a : -hosts b.invalid -n 3 ./b",
                "a.invalid ssh 1,b.invalid ssh 3",
            ),
            (
                "-n 2 ./a : -host b.invalid:2 -n 3 ./b",
                "localhost fork 2,b.invalid ssh 3",
            ),
            (
                "-hosts a.invalid,b.invalid -n 1 ./a : -hosts c.invalid ./b : -n 2 ./c",
                "a.invalid ssh 2,b.invalid ssh 1,c.invalid ssh 1",
            ),
            (
                "-hosts a.invalid:2,b.invalid -n 2 ./a : -hosts b.invalid -n 2 ./b : -hosts a.invalid ./c",
                "a.invalid ssh 3,b.invalid ssh 2",
            ),
            (
                "-hosts a.invalid,b.invalid ./a : -hosts a.invalid,c.invalid -ppn 2 -n 3 ./b",
                "a.invalid ssh 3,b.invalid ssh 0,c.invalid ssh 1",
            ),
            ("-hosts localhost ./a : -hosts 127.0.0.1:2 -n 2 ./b", "here 3"),
        ] {
            assert_eq!(found(line, &[]).as_deref(), Ok(expected), "{line}");
        }
        for (line, why) in [
            ("--nodes 2 -hosts a.invalid ./a", "leave one of them out"),
            ("--nodes 2 -launcher ssh ./a", "leave one of them out"),
            ("-hosts a.invalid -launcher fork ./a", "a.invalid is not this machine"),
            ("-hosts , ./a", "names no host"),
            ("./a : -hosts , ./b", "names no host"),
            (
                "--nodes 2 ./a : -hosts a.invalid ./b",
                "-hosts names hosts; leave one of them out",
            ),
            ("-launcher join ./a : -hosts a.invalid ./b", "leave -hosts out"),
            (
                "-hosts a.invalid --spares 1 ./a : -hosts b.invalid ./b",
                "all hosts of a program would be spares",
            ),
            ("--nodes 2 --spares 2 ./a", "of 2 nodes one at least must be left"),
            ("--spares 1 ./a", "write --nodes 2"),
            ("-hosts a:0 ./a", "no number of slots"),
            ("-launcher rsh -hosts a ./a", "did you mean ssh?"),
        ] {
            let refused = found(line, &[]).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }

    #[test]
    fn jobs_of_slurm_have_its_nodes() {
        let slurm = |list, tasks| {
            [
                ("SLURM_JOB_ID", "7"),
                ("SLURM_JOB_NODELIST", list),
                ("SLURM_TASKS_PER_NODE", tasks),
            ]
        };
        let two = slurm("n[1-2].invalid", "4,2");
        assert_eq!(found("./a", &two).unwrap(), "n1.invalid slurm 4,n2.invalid slurm 2");
        assert_eq!(
            found("-n 2 -ppn 1 ./a", &two).unwrap(),
            "n1.invalid slurm 1,n2.invalid slurm 1"
        );
        assert_eq!(
            found("-launcher ssh -n 5 ./a", &two).unwrap(),
            "n1.invalid ssh 4,n2.invalid ssh 1"
        );
        assert_eq!(found("-hosts localhost -n 2 ./a", &two).unwrap(), "here 2");
        assert_eq!(found("./a", &slurm("localhost", "4")).unwrap(), "here 4");
        assert!(
            found("./a", &slurm("n[1", "4"))
                .unwrap_err()
                .contains("SLURM_JOB_NODELIST")
        );
    }

    #[test]
    fn jobs_of_other_batch_systems_have_their_nodes() {
        let lsf = [("LSB_MCPU_HOSTS", "n1.invalid 4 n2.invalid 2 n3.invalid 1")];
        assert_eq!(
            found("./a", &lsf).unwrap(),
            "n1.invalid ssh 4,n2.invalid ssh 2,n3.invalid ssh 1"
        );
        // Where no rank runs another job may.
        assert_eq!(found("-n 5 ./a", &lsf).unwrap(), "n1.invalid ssh 4,n2.invalid ssh 1");
        assert_eq!(found("-hosts localhost -n 2 ./a", &lsf).unwrap(), "here 2");
        assert!(
            found("./a", &[("PBS_NODEFILE", "/nowhere")])
                .unwrap_err()
                .contains("PBS_NODEFILE")
        );
    }

    #[test]
    fn names_with_and_without_a_domain() {
        assert!(is_same("n1", "n1.cluster") && is_same("n1.cluster", "n1") && is_same("n1.a", "n1.a"));
        assert!(!is_same("n1.a", "n1.b") && !is_same("n2", "n1") && !is_same("", ""));
    }
}
