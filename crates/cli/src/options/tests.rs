use std::time::Duration;

use nix::sys::signal::Signal;
use resurgo_runtime::dispatcher::{Order, Period};

use super::*;
use resurgo_protocol::Protocol;

fn parse_words(line: &str) -> Result<Request, String> {
    parse(line.split_whitespace().map(OsString::from).collect(), &[], |_| None)
}

fn options(line: &str) -> Options {
    match parse_words(line) {
        Ok(Request::Run(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn what_people_type_at_mpiexec() {
    for line in [
        "-n 4 ./app -x 3",
        "-np 4 ./app -x 3",
        "-np=4 ./app -x 3",
        "--np 4 -- ./app -x 3",
        "-n4 ./app -x 3",
        "-np4 ./app -x 3",
        "-ppn 8 -hosts localhost -launcher fork -usize SYSTEM --oversubscribe -n 4 ./app -x 3",
    ] {
        let options = options(line);
        assert_eq!(options.programs[0].ranks, 4, "{line}");
        assert_eq!(options.programs[0].arguments, ["./app", "-x", "3"], "{line}");
    }
    let options = options("-genv A 1 -l -wdir /tmp -n 2 -env B 2 ./a x : -n 3 -envnone ./b -- :y");
    assert!(options.output.label.is_some());
    assert_eq!(options.size(), 5);
    assert_eq!(options.environment.set, [("A".into(), "1".into())]);
    assert_eq!(options.programs[0].environment, [("B".into(), "2".into())]);
    assert_eq!(options.programs[0].directory, Some("/tmp".into()));
    assert_eq!(options.programs[1].inherit, Some(Inherit::Nothing));
    assert_eq!(options.programs[1].arguments, ["./b", "--", ":y"]);
    assert_eq!(options.programs[1].directory, None);
}

#[test]
fn other_nodes_are_a_place_of_images() {
    let of = |line: &str| {
        let images = options(line).images;
        (images.peers, images.places.len())
    };
    assert_eq!(of("--nodes 3 ./a"), (None, 0));
    assert_eq!(of("--nodes 3 --store peers:2 ./a"), (Some(2), 0));
    assert_eq!(of("--checkpoint-dir d --store dir:/p,peers:0 ./a"), (Some(0), 1));
    assert_eq!(of("--checkpoint-dir d --store server:a,peers:3,b ./a"), (Some(3), 1));
    assert_eq!(
        of("--checkpoint-dir d --store local,peers:1,s3://b/p;every=10 ./a"),
        (Some(1), 1)
    );
    let rate = |line: &str| options(line).images.copy_rate;
    assert_eq!(rate("--nodes 3 --store peers:2;rate=60M ./a"), Some(60 << 20));
    assert_eq!(rate("--nodes 3 --store parity:2+1;rate=1M/s ./a"), Some(1 << 20));
    assert_eq!(rate("--nodes 3 --store peers:2 ./a"), None);
    assert!(options("--store local ./a").images.names_local);
    assert!(!options("./a").images.names_levels());
}

#[test]
fn options_of_our_own() {
    let options = options(
        "--protocol pessimistic --max-restarts 3 --max-restarts-per-rank=2 --log-memory 1.5G --log-prefault 0 \
         --spill-dir /var/tmp --fault rank=1,at=3s --fault rank=2,at=4s -q --json-events e.json --tolerate node \
         --event-logger 127.0.0.1:7000 --spin 20 ./a",
    );
    assert_eq!(options.protocol, Protocol::Pessimistic);
    assert_eq!((options.ends.restarts, options.ends.restarts_per_rank), (3, 2));
    assert_eq!((options.log.memory, options.log.prefault), (Some(3 << 29), 0));
    assert_eq!(options.faults, ["rank=1,at=3s", "rank=2,at=4s"]);
    assert_eq!(options.loggers.address.port(), 7000);
    assert_eq!(options.spin, Some(Duration::from_micros(20)));
    assert!(
        options.output.quiet && options.log.spill_directory.is_some() && options.output.reports.json_events.is_some()
    );
}

#[test]
fn auto_logs_without_waiting_where_nodes_may_be_lost() {
    let of = |line: &str| options(line).protocol;
    assert_eq!(of("--tolerate node ./a"), Protocol::Causal);
    assert_eq!(
        of("--tolerate node --event-loggers 0 --reduction logon ./a"),
        Protocol::Causal
    );
    assert_eq!(of("--tolerate process ./a"), Protocol::Auto);
}

#[test]
fn the_environment_gives_options_and_the_command_line_wins() {
    let variable = |name: &str| match name {
        "RESURGO_LOG_MEMORY" => Some("64M".into()),
        "RESURGO_PROTOCOL" => Some("none".into()),
        "RESURGO_QUIET" => Some("1".into()),
        "RESURGO_FAULT" => Some("rank=0,at=1s;rank=1,at=2s".into()),
        _ => None,
    };
    let parse = |line: &str| match parse(line.split_whitespace().map(OsString::from).collect(), &[], variable) {
        Ok(Request::Run(options)) => *options,
        other => panic!("{line}: {other:?}"),
    };
    let options = parse("--protocol pessimistic ./a");
    assert_eq!(
        (options.log.memory, options.protocol),
        (Some(64 << 20), Protocol::Pessimistic)
    );
    assert!(options.output.quiet);
    assert_eq!(options.faults.len(), 2);
    assert_eq!(
        parse("--fault rank=0,at=5s --fault rank=0,at=6s ./a").faults,
        ["rank=0,at=5s", "rank=0,at=6s"]
    );
}

#[test]
fn places_on_the_command_line_replace_those_of_the_environment() {
    let variable = |name: &str| (name == "RESURGO_STORE").then(|| "dir:/a;every=2,dir:/b".into());
    let shown = |line: &str| {
        let line = format!("--checkpoint-dir /images {line} ./a");
        let Ok(Request::Run(options)) = parse(line.split_whitespace().map(OsString::from).collect(), &[], variable)
        else {
            panic!("{line}");
        };
        let places = options.images.places.into_iter();
        places.map(|place| place.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(shown(""), ["dir:/a;every=2;keep=2", "dir:/b;every=1;keep=2"]);
    assert_eq!(
        shown("--store dir:/b --store dir:/c,server:h"),
        [
            "dir:/b;every=1;keep=2",
            "dir:/c;every=1;keep=2",
            "server:h;every=1;keep=2"
        ]
    );
}

#[test]
fn a_rate_of_copies_in_the_environment_goes_with_them() {
    let variable = |name: &str| (name == "RESURGO_STORE").then(|| "peers:2;rate=60M".into());
    let copies = |line: &str| {
        let line = format!("--nodes 3 {line} ./a");
        let Ok(Request::Run(options)) = parse(line.split_whitespace().map(OsString::from).collect(), &[], variable)
        else {
            panic!("{line}");
        };
        (options.images.peers, options.images.copy_rate)
    };
    assert_eq!(copies(""), (Some(2), Some(60 << 20)));
    assert_eq!(copies("--store peers:1"), (Some(1), None));
}

#[test]
fn policies_say_whose_image_comes_next() {
    let every = "--checkpoint-every 2s";
    for (line, order) in [
        ("periodic", Order::Periodic),
        ("round-robin", Order::RoundRobin),
        ("random", Order::Random { seed: 1 }),
        ("random,seed=9", Order::Random { seed: 9 }),
        ("most-log", Order::MostLog),
    ] {
        let options = options(&format!("--checkpoint-policy {line} {every} ./a"));
        assert_eq!(options.images.order, order);
        assert_eq!(options.images.period, Period::Every(Duration::from_secs(2)));
    }
    let mtbf = Some(Duration::from_secs(3600));
    for line in ["--checkpoint-policy daly", "--checkpoint-every daly"] {
        let options = options(&format!("{line} --mtbf 1h --protocol blocking ./a"));
        assert_eq!(options.images.period, Period::Daly { mtbf });
    }
    let both = options("--checkpoint-policy round-robin --checkpoint-every daly ./a");
    assert_eq!(
        (both.images.order, both.images.period),
        (Order::RoundRobin, Period::Daly { mtbf: None })
    );
}

#[test]
fn local_copies_are_on_unless_said() {
    assert!(
        options("--checkpoint-dir d ./a").images.local_copies && options("--local-copies on ./a").images.local_copies
    );
    for protocol in [
        "auto",
        "pessimistic",
        "causal",
        "blocking",
        "chandy-lamport",
        "group",
        "hierarchical",
        "channel-memory",
    ] {
        let options = options(&format!(
            "-n 4 --protocol {protocol} --local-copies off --checkpoint-dir d ./a"
        ));
        assert!(!options.images.local_copies, "{protocol}");
    }
    let variable = |name: &str| (name == "RESURGO_LOCAL_COPIES").then(|| "off".into());
    let words = |line: &str| line.split_whitespace().map(OsString::from).collect();
    match parse(words("--checkpoint-dir d ./a"), &[], variable) {
        Ok(Request::Run(options)) => assert!(!options.images.local_copies),
        other => panic!("{other:?}"),
    }
}

#[test]
fn levels_of_compression() {
    for (value, level) in [("zstd", 1), ("zstd:1", 1), ("zstd:19", 19)] {
        let options = options(&format!("--checkpoint-dir d --checkpoint-compress {value} ./a"));
        assert_eq!(options.images.compress, Some(level), "{value}");
    }
    assert_eq!(options("--checkpoint-dir d ./a").images.compress, None);
}

#[test]
fn errors_name_what_is_wrong() {
    for (line, expected) in [
        ("", "no program"),
        ("-n 4", "no program"),
        ("-n 4 ./a :", "no program"),
        ("-n 0 ./a", "at least one rank"),
        ("-n 5000 ./a", "4096"),
        ("-n 4000 ./a : -n 4000 ./b", "4096"),
        ("-n four ./a", "not a number"),
        ("-n", "needs a value"),
        ("-env A", "needs a name and a value"),
        ("-env =B ./a", "not a name"),
        (
            "--json-events -n 2 ./a",
            "--json-events needs a value, and -n is an option; where that is meant, write --json-events=VALUE",
        ),
        (
            "--checkpoint-dir --quiet ./a",
            "needs a value, and --quiet is an option",
        ),
        ("-wdir -n4 ./a", "needs a value, and -n4 is an option"),
        ("-wdir -- ./a", "needs a value, and -- is an option"),
        (
            "-genv --mca A ./a",
            "-genv needs a name and a value, and --mca is an option",
        ),
        ("--mca btl tcp ./a", "parameters of Open MPI mean nothing"),
        ("-npernode 2 ./a", "write how many ranks it runs in all"),
        ("-configfile f -n 2 ./a", "names all programs"),
        ("-n4x ./a", "unknown option -n4x"),
        ("-l=3 ./a", "takes no value"),
        ("--protocl none ./a", "did you mean --protocol?"),
        (
            "--checkpoint-dir d --checkpoint-compress gzip ./a",
            "neither zstd nor zstd:LEVEL with a level from 1 to 19",
        ),
        ("--checkpoint-dir d --checkpoint-compress zstd:0 ./a", "from 1 to 19"),
        ("--checkpoint-dir d --checkpoint-compress zstd:20 ./a", "from 1 to 19"),
        ("--checkpoint-dir d --checkpoint-compress zstd3 ./a", "from 1 to 19"),
        ("--checkpoint-compress zstd ./a", "needs --checkpoint-dir"),
        ("--checkpoint-keep ./a", "needs --checkpoint-dir"),
        ("--store dir:/p ./a", "needs --checkpoint-dir"),
        ("--checkpoint-dir d --store p ./a", "is no place"),
        ("--nodes 3 --store peers:x ./a", "a number from 0 to 64"),
        ("--nodes 3 --store peers:1;every=2 ./a", "there is rate=SIZE"),
        ("--nodes 3 --store peers:1;rate=0 ./a", "more than 0"),
        ("--nodes 3 --store parity:8 ./a", "write parity:N+M, as in parity:8+2"),
        ("--nodes 3 --store parity:8+x ./a", "write parity:N+M"),
        ("--nodes 3 --store parity:0+1 ./a", "both at least 1"),
        ("--nodes 3 --store parity:8+0 ./a", "both at least 1"),
        ("--nodes 3 --store parity:255+2 ./a", "at most 256 together"),
        ("--nodes 3 --store parity:4294967295+1 ./a", "at most 256 together"),
        ("--nodes 3 --store parity:2+1,parity:3+1 ./a", "named twice"),
        ("--nodes 3 --store parity:2+1,peers:1 ./a", "name one of both"),
        ("--nodes 3 --store peers:0 --store parity:2+1 ./a", "name one of both"),
        (
            "--nodes 3 --protocol pessimistic --tolerate node --store parity:2+1 ./a",
            "needs waves of all ranks, which a job with --protocol pessimistic --tolerate node has not: use peers:1",
        ),
        (
            "--nodes 3 --protocol channel-memory --store parity:2+1 ./a",
            "use peers:1",
        ),
        (
            "--nodes 3 --protocol hierarchical --store parity:2+1 ./a",
            "leave it out",
        ),
        ("--nodes 3 --protocol none --store parity:2+1 ./a", "leave it out"),
        ("--nodes 3 --store peers:2,peers:3 ./a", "named twice"),
        ("--store local;every=2 ./a", "takes no options"),
        ("--protocol none --store local ./a", "has no images"),
        (
            "--checkpoint-dir d --local-copies off --store local ./a",
            "leave one of them out",
        ),
        (
            "--nodes 3 --protocol pessimistic --store peers:2 ./a",
            "of no use there",
        ),
        (
            "--checkpoint-dir d --store dir:/p --protocol pessimistic ./a",
            "complete waves of all ranks",
        ),
        (
            "--checkpoint-dir d --store dir:/p --protocol channel-memory ./a",
            "complete waves of all ranks",
        ),
        ("--checkpoint-dir d --store-key k ./a", "none is named"),
        ("--checkpoint-dir= ./a", "write the name of a directory"),
        (
            "--checkpoint-every daly --mtbf 0 ./a",
            "--mtbf 0: must be greater than 0",
        ),
        ("--checkpoint-dir d --time-limit 0 ./a", "leave it out for no limit"),
        (
            "--checkpoint-dir d --time-limit 04:00:00 ./a",
            "as in 250ms, 3s, 90m or 4h",
        ),
        ("--local-copies no --checkpoint-dir d ./a", "neither on nor off"),
        ("--local-copies off ./a", "add --checkpoint-dir DIR"),
        (
            "--local-copies off --protocol chandy-lamport ./a",
            "add --checkpoint-dir DIR",
        ),
        ("--local-copies off --protocol none ./a", "needs images"),
        ("--protocol none --checkpoint-dir d ./a", "leave it out"),
        (
            "--protocol blocking --spill-dir d ./a",
            "is for message logs, and --protocol blocking has none",
        ),
        ("--log-memroy 3M ./a", "did you mean --log-memory?"),
        ("-gnev A B ./a", "did you mean -genv?"),
        ("--xyzzy ./a", "--help lists them"),
        ("--protocol pesimistic ./a", "did you mean pessimistic?"),
        ("--log-memory lots ./a", "not a size"),
        ("--log-memory 4K ./a", "must be at least 1M"),
        ("--log-memory 1T ./a", "must be at most 64G"),
        ("--tolerate disk ./a", "neither process nor node"),
        ("--tolerate node --protocol none ./a", "does not tolerate"),
        (
            "--reduction logon ./a",
            "is for --protocol causal --tolerate node; auto piggybacks nothing; add both",
        ),
        ("--protocol causal --reduction logon ./a", "add --tolerate node"),
        (
            "--protocol pessimistic --tolerate node --reduction logon ./a",
            "add --protocol causal: pessimistic piggybacks nothing",
        ),
        (
            "--spill-dir /var/tmp --event-loggers 0 ./a",
            "needs --tolerate node: while only processes are lost",
        ),
        ("--protocol Causal ./a", "did you mean causal?"),
        ("--protocol V2 ./a", "did you mean pessimistic?"),
        (
            "--protocol manetho ./a",
            "did you mean causal --tolerate node --reduction manetho?",
        ),
        ("--protocol causal --reduction manhatto ./a", "did you mean manetho?"),
        ("--event-loggers 1 ./a", "needs --tolerate node"),
        (
            "--protocol pessimistic --tolerate node --event-loggers 0 ./a",
            "the nearest is --event-loggers 1",
        ),
        ("--event-logger 127.0.0.1:7000 ./a", "needs --tolerate node"),
        ("--protocol none --event-logger 127.0.0.1:7000 ./a", "leave it out"),
        (
            "-n 2 --tolerate node --event-loggers 3 ./a",
            "--event-loggers 2 at most",
        ),
        ("--tolerate node --event-loggers 99 ./a", "at most 64"),
        (
            "--protocol causal --tolerate node --clock-spread multicast ./a",
            "add --event-loggers 2",
        ),
        (
            "-n 2 --protocol causal --clock-spread multicast ./a",
            "add --tolerate node --event-loggers 2",
        ),
        (
            "--protocol causal --tolerate node --event-loggers 0 --clock-spread multicast ./a",
            "without event loggers",
        ),
        (
            "-n 2 --protocol pessimistic --tolerate node --event-loggers 2 --clock-spread broadcast ./a",
            "for --protocol causal",
        ),
        (
            "--protocol causal --tolerate node --clock-spread gossip ./a",
            "there are multicast, broadcast",
        ),
        (
            "--group-size 2 ./a",
            "--group-size is for --protocol group and hierarchical",
        ),
        (
            "--protocol blocking --groups dynamic ./a",
            "under blocking all ranks have their images together",
        ),
        (
            "--protocol chandy-lamport --groups-at-once 2 ./a",
            "is for --protocol group; under chandy-lamport",
        ),
        (
            "-n 4 --protocol group --groups-at-once 5 --checkpoint-dir d ./a",
            "--groups-at-once 4 at most",
        ),
        ("--protocol group --groups= ./a", "write static, dynamic"),
        (
            "--protocol pessimistic --group-size 2 ./a",
            "each rank has its images alone",
        ),
        ("--protocol group --group-size 0 ./a", "must be at least 1"),
        ("-n 4 --protocol group --group-size 5 ./a", "--group-size 4 at most"),
        ("--protocol group --group-size x ./a", "not a number"),
        (
            "-n 4 --protocol group --groups list --group-size 2 ./a",
            "leave --group-size out",
        ),
        ("--protocol group --groups-at-once 0 ./a", "must be at least 1"),
        ("-n 4 --protocol group --groups-at-once 2 ./a", "needs --checkpoint-dir"),
        (
            "-n 4 --protocol group --groups static --group-size 2 --groups-at-once 3 --checkpoint-dir d ./a",
            "--groups-at-once 2 at most",
        ),
        (
            "-n 4 --protocol group --checkpoint-in-flight 2 --checkpoint-dir d ./a",
            "the nearest is --groups-at-once 2",
        ),
        ("--tolerate node --protocol group ./a", "does not tolerate"),
        (
            "-n 4 --protocol hierarchical --groups dynamic ./a",
            "stay the same; the nearest is --groups static",
        ),
        (
            "-n 4 --protocol hierarchical --groups-at-once 2 --checkpoint-dir d ./a",
            "each group writes its images",
        ),
        (
            "--protocol hierarchical --spill-dir d ./a",
            "cannot be cut back to a wave",
        ),
        (
            "--protocol hierarchical --checkpoint-in-flight 2 --checkpoint-dir d ./a",
            "run with --protocol pessimistic",
        ),
        (
            "--protocol hierarchical --checkpoint-policy most-log --checkpoint-every 1s ./a",
            "a wave of each group every time",
        ),
        (
            "-n 4 --protocol hierarchical --group-size 5 ./a",
            "--group-size 4 at most",
        ),
        ("--event-logger here ./a", "not an address and a port"),
        (
            "--event-logger [fe80::1%2]:7000 ./a",
            "give an address that all ranks can reach",
        ),
        ("--channel-memory here ./a", "not an address and a port"),
        ("--channel-memories 1 ./a", "are for --protocol channel-memory"),
        ("--channel-memory-hosts a ./a", "are for --protocol channel-memory"),
        ("--protocol channel-memory --channel-memory-hosts a:2 ./a", "1 at most"),
        (
            "--protocol channel-memory --channel-memory-hosts a --channel-memories 1 ./a",
            "write HOST:2",
        ),
        (
            "--protocol channel-memory --channel-memory-hosts , ./a",
            "names no host",
        ),
        ("--protocol causal --channel-memory 127.0.0.1:0 ./a", "causal has none"),
        (
            "--protocol channel-memory --channel-memories 0 ./a",
            "--channel-memories 1 at least",
        ),
        (
            "-n 2 --protocol channel-memory --channel-memories 3 ./a",
            "more than the 2 ranks that they serve; 2 at most",
        ),
        ("--protocol channel-memory --channel-memories 99 ./a", "at most 64"),
        ("--protocol channel-memory --tolerate node ./a", "leave --tolerate out"),
        (
            "--protocol channel-memory --event-loggers 1 ./a",
            "channel-memory has no event loggers; leave it out",
        ),
        (
            "--protocol channel-memory --checkpoint-dir d --time-limit 1h ./a",
            "cannot be suspended",
        ),
        (
            "--protocol channel-memory --checkpoint-dir d --resume-if-any ./a",
            "cannot be suspended",
        ),
        ("--protocol chanel-memory ./a", "did you mean channel-memory?"),
        ("--spin soon ./a", "not a duration"),
        ("--stats-json a --json-events a ./a", "files of their own"),
        (
            "--stats-json a --metrics-file a ./a",
            "--stats-json and --metrics-file need files of their own",
        ),
        ("--checkpoint-every now ./a", "not a duration"),
        ("--checkpoint-every 1ms ./a", "must be at least 10ms"),
        ("--checkpoint-policy round-robbin ./a", "did you mean round-robin?"),
        ("--checkpoint-policy xyzzy ./a", "there are periodic"),
        ("--checkpoint-policy random,seed=x ./a", "random,seed=N"),
        ("--checkpoint-policy most-log,seed=1 ./a", "only random"),
        ("--checkpoint-policy most-log ./a", "how often"),
        ("--checkpoint-policy daly --checkpoint-every 1s ./a", "chooses the time"),
        (
            "--checkpoint-policy random --checkpoint-every 1s --protocol blocking ./a",
            "the nearest is periodic",
        ),
        ("--checkpoint-policy daly --protocol none ./a", "uses no images"),
        ("--checkpoint-in-flight 0 --checkpoint-dir d ./a", "must be at least 1"),
        ("--checkpoint-share 0 ./a", "write 0.1% to 100%"),
        ("--checkpoint-share 10s ./a", "write 0.1% to 100%"),
        ("--checkpoint-in-flight 2 ./a", "needs --checkpoint-dir"),
        (
            "--checkpoint-in-flight 2 --checkpoint-dir d --protocol blocking ./a",
            "one wave at a time",
        ),
        ("--mtbf 1h ./a", "is for --checkpoint-every daly"),
        ("--checkpoint-every 1s --protocol none ./a", "uses no images"),
        (
            "--tolerate node --checkpoint-dir d --time-limit 1h ./a",
            "with --tolerate node a job cannot be suspended, as what its event loggers hold",
        ),
    ] {
        match parse_words(line) {
            Err(error) => assert!(error.contains(expected), "{line}: {error}"),
            Ok(_) => panic!("{line} is accepted"),
        }
    }
}

#[test]
fn a_value_may_look_like_an_option_where_it_is_meant() {
    let options = options("--json-events=-n -env A -l -env B=-n -genv C=1=2 -x D=4 -x E ./a");
    assert_eq!(options.output.reports.json_events, Some("-n".into()));
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    };
    assert_eq!(options.programs[0].environment, pairs(&[("A", "-l"), ("B", "-n")]));
    assert_eq!(options.environment.set, pairs(&[("C", "1=2"), ("D", "4")]));
    assert_eq!(options.environment.exported, ["E"]);
}

#[test]
fn hosts_are_kept_for_the_check() {
    let options = options("-hosts a,b -n 2 -H c:2 ./a : -f list ./b");
    let listed = |option: &str, list: &str| Hosts::Listed(option.to_string(), list.to_string());
    let file = Hosts::InFile("-f".to_string(), "list".into());
    assert_eq!(options.nodes.hosts, [listed("-hosts", "a,b"), listed("-H", "c:2")]);
    assert_eq!(options.programs[0].hosts, []);
    assert_eq!(options.programs[1].hosts, [file]);
}

#[test]
fn variables_that_mean_nothing_are_noticed() {
    for name in [
        "RESURGO_PROTOCOL",
        "RESURGO_RANK",
        "RESURGO_FABRIC_DIR",
        "RESURGO",
        "HOME",
        "MY_RESURGO_X",
    ] {
        assert_eq!(check_variable(name), Ok(()), "{name}");
    }
    for (name, hint) in [
        ("RESURGO_PROTCOL", "did you mean RESURGO_PROTOCOL?"),
        ("RESURGO_CHECKPOINT_DRI", "did you mean RESURGO_CHECKPOINT_DIR?"),
        ("RESURGO_N", "unset it"),
    ] {
        let error = check_variable(name).unwrap_err();
        assert!(error.contains(hint) && error.contains(name), "{error}");
    }
}

#[test]
fn every_option_is_known_once() {
    for line in table::options() {
        for name in line.bare_names() {
            let same = table::options().filter(|other| other.is(name));
            assert_eq!(same.count(), 1, "{name}");
        }
    }
}

/// An entry of the reference: the part of a list item before the colon, without line breaks.
fn entries(page: &str) -> Vec<String> {
    let mut entries = Vec::new();
    for item in page.split("\n- ").skip(1) {
        let item = item.split("\n\n").next().unwrap_or_default().replace("\n  ", " ");
        // A colon inside code is no end.
        let mut is_code = false;
        let mut depth = 0;
        let mut end = item.len();
        for (at, letter) in item.char_indices() {
            match letter {
                '`' => is_code = !is_code,
                '(' if !is_code => depth += 1,
                ')' if !is_code => depth -= 1,
                ':' if !is_code && depth == 0 => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        entries.push(item[..end].to_string());
    }
    entries
}

/// The pieces of code in an entry: options, which begin with a dash, or variables.
fn code(entry: &str) -> Vec<&str> {
    entry.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_reference_begins_with_eight_options() {
    let page = include_str!("../../../../docs/reference/options.md");
    let table = page.split("\n## ").nth(1).unwrap();
    assert!(table.starts_with("Every day\n"));
    let rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(rows.len(), 8);
    for row in rows {
        // As help has it.
        let (name, values) = row.split_once(' ').unwrap_or((row, ""));
        let line = table::find(name.trim_start_matches('-')).unwrap_or_else(|| panic!("there is no {name}"));
        assert_eq!((line.names().next(), line.values), (Some(name), values), "{row}");
    }
}

#[test]
fn the_reference_has_every_option_and_no_other() {
    let page = include_str!("../../../../docs/reference/options.md");
    let page = page.split("\n# `resurgo ps").next().unwrap();
    let entries: Vec<String> = entries(page)
        .into_iter()
        .filter(|entry| entry.starts_with("`-"))
        .collect();
    for line in table::options() {
        let name = line.names().next().unwrap();
        // This option has a section of its own.
        if line.is("fault") {
            assert!(page.contains("`--fault SPEC`") && page.contains("`RESURGO_FAULT`"));
            continue;
        }
        let written = |name: &str| match line.values {
            "" | "WORD" => format!("`{name}`"),
            values => format!("`{name} {values}`"),
        };
        let entry = entries
            .iter()
            .find(|entry| line.names().any(|name| entry.contains(&written(name))));
        let entry = entry.unwrap_or_else(|| panic!("the reference has no {}", written(name)));
        for name in line.names() {
            let is_there = code(entry).iter().any(|code| code.split(' ').next() == Some(name));
            assert!(is_there, "the reference has {entry} without {name}");
        }
        let default = [
            format!("default {}", line.default),
            format!("default `{}`", line.default),
        ];
        let says_default = default.iter().any(|default| entry.contains(default.as_str()));
        assert!(
            line.default.is_empty() || says_default,
            "{entry}: the default is {}",
            line.default
        );
        let variables = code(entry).into_iter().filter_map(|code| code.strip_prefix("RESURGO_"));
        let variables: Vec<String> = variables
            .map(|name| format!("RESURGO_{}", name.trim_end_matches("=1")))
            .collect();
        assert_eq!(variables, Vec::from_iter(line.variable()), "{entry}");
    }
    for entry in &entries {
        for option in code(entry)
            .iter()
            .filter(|code| code.starts_with('-') && **code != "--")
        {
            let name = option.split([' ', '=']).next().unwrap().trim_start_matches('-');
            let is_known = table::find(name).is_some() || name == "nN" || name.ends_with('…');
            assert!(is_known, "the reference has {option}, which there is not");
        }
    }
}

#[test]
fn the_guide_lists_what_can_be_given_anew() {
    let page = include_str!("../../../../docs/guide/checkpointing.md");
    let (_, list) = page.split_once("**Options that can be given anew**: ").unwrap();
    let list = list.split(". ").next().unwrap();
    // Options that begin alike are written by their different part: `-share`, `--max-restarts…`.
    let means = |code: &str, line: &table::Line| {
        let bare = code.trim_start_matches('-');
        match bare.strip_suffix('…') {
            Some(start) => line.bare_names().any(|name| name.starts_with(start)),
            None => line.is(bare) || line.is(&format!("checkpoint-{bare}")),
        }
    };
    for line in table::options().filter(|line| !line.is("help") && !line.is("version")) {
        let is_listed = code(list).iter().any(|code| means(code, line));
        assert_eq!(is_listed, line.is_for_resume(), "{:?}", line.names().next());
    }
}

#[test]
fn defaults_are_what_the_table_says() {
    let options = options("./a");
    assert_eq!((options.ends.restarts, options.ends.restarts_per_rank), (64, 16));
    assert_eq!(options.ends.grace, Duration::from_secs(2));
    assert_eq!(
        (options.images.share, options.images.signal),
        (0.1, Some(Signal::SIGUSR1))
    );
    assert_eq!(
        (options.loggers.count, options.memories.count, options.groups.at_once),
        (1, 1, 1)
    );
    assert_eq!(options.loggers.address, "127.0.0.1:0".parse().unwrap());
    assert_eq!((options.log.prefault, options.images.local_copies), (4 << 20, true));
    assert!(!options.has("grace") && options.images.period == Period::Never);
}

#[test]
fn help_is_help_wherever_it_stands() {
    assert_eq!(parse_words("-n 4 --help"), Ok(Request::Help));
    assert_eq!(parse_words("--version ./a"), Ok(Request::Version));
}
