use super::*;
use crate::sys::PATIENCE as SOON;

/// The answers to a heartbeat, or to none: that of a later one, which is answered in any case, comes behind them.
fn answers(agents: &mut Agents, from: &beats::Sent, by: &beats::Sent, number: u64) -> (Vec<u64>, Vec<u64>) {
    by.send(number);
    let (mut answers, mut own) = (Vec::new(), Vec::new());
    let end = Instant::now() + SOON;
    while own.is_empty() && Instant::now() < end {
        agents.answer_beats();
        own = by.answered();
        answers.extend(from.answered());
    }
    (answers, own)
}

#[test]
fn heartbeats_as_datagrams_count_once_and_while_the_connection_may_come_back() {
    let (lease, key) = (Duration::from_secs(3600), [5; 32]);
    let heard = beats::Heard::listen(&[std::net::Ipv4Addr::LOCALHOST.into()], key).unwrap();
    let to = (std::net::Ipv4Addr::LOCALHOST, heard.port().unwrap()).into();
    let sent = |name, key| beats::Sent::to(to, [name; NAME_BYTES], key).unwrap();
    let (first, second) = (sent(1, key), sent(2, key));
    let pairs: Vec<_> = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
    let node = |(number, (ours, _)): (usize, &(UnixStream, UnixStream))| {
        let connection = Connection::new(ours.try_clone().unwrap()).unwrap();
        Node::of(
            format!("n{number}"),
            0,
            None,
            connection,
            [number as u8 + 1; NAME_BYTES],
        )
    };
    let nodes = pairs.iter().enumerate().map(node).collect();
    let mut agents = Agents::several(nodes, Helpers::default(), lease, Some(heard));

    first.send(4);
    assert_eq!(answers(&mut agents, &first, &second, 1), (vec![4], vec![1]));
    // A repeated one, one of somebody with another key, and one of nobody.
    first.send(4);
    sent(1, [6; 32]).send(9);
    sent(3, key).send(9);
    assert_eq!(answers(&mut agents, &first, &second, 2), (vec![], vec![2]));
    // Nothing comes on the first node's connection.
    for leases in 1..=CUTS as u64 {
        let watched = agents.membership.as_mut().unwrap();
        watched.clock += lease;
        watched.spoke[1].0 = watched.clock;
        first.send(10 + leases);
        let counts = (leases < CUTS as u64).then_some(10 + leases);
        let expected = (counts.into_iter().collect(), vec![10 + leases]);
        assert_eq!(answers(&mut agents, &first, &second, 10 + leases), expected);
    }
}

#[test]
fn a_lost_node_is_told_by_its_agents_end_or_by_its_silence() {
    let lost = |script: &str, is_silent: bool| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut process = Command::new("sh").args(["-c", script]).spawn().unwrap();
        if !is_silent {
            process.wait().unwrap();
        }
        let mut node = Node::of(
            "n2".to_string(),
            0,
            Some(process),
            Connection::new(ours).unwrap(),
            [0; NAME_BYTES],
        );
        let Lost { words, cause } = node.end(is_silent);
        assert!(words.contains("node n2"), "{words}");
        (words, cause)
    };
    for (script, how, cause) in [
        (
            "kill -9 $$",
            "has died (killed by SIGKILL)",
            "its agent was killed by SIGKILL",
        ),
        // As the agent's parent on another machine tells it.
        (
            "exit 139",
            "has died (killed by SIGSEGV)",
            "its agent was killed by SIGSEGV",
        ),
        (
            "exit 1",
            "has died (exited with code 1)",
            "its agent exited with code 1",
        ),
        ("exit 255", "has ended (pid ", "the connection to its agent has ended"),
    ] {
        let found = lost(script, false);
        assert!(found.0.contains(how) && found.1 == cause, "{script}: {found:?}");
    }
    let (words, cause) = lost("exec sleep 600", true);
    assert!(words.starts_with("node n2 cannot be reached ("), "{words}");
    assert_eq!(cause, "it cannot be reached");
}

#[test]
fn an_agent_without_a_process_here_has_gone() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut node = Node::of(
        "n3".to_string(),
        0,
        None,
        Connection::new(ours).unwrap(),
        [0; NAME_BYTES],
    );
    assert_eq!(node.last_words(), "the agent of node n3 has gone");
}
