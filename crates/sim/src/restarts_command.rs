//! `resurgo-sim restarts`: one line of CSV for each number of nodes, placement and chance.

use std::convert::Infallible;
use std::process::ExitCode;

use resurgo_protocol::survival::{Placement, chance, chance_of_racks, most_lost};
use resurgo_sim::random::Random;
use resurgo_sim::restarts::{Layout, drawn, drawn_racks, most_drawn};

use crate::command::{list, print, say, scaled};

const USAGE: &str =
    "usage: resurgo-sim restarts [--nodes LIST] [--replicas LIST] [--parity LIST] [--racks COUNT] [--chances LIST]
                            [--trials COUNT] [--seed N]

How many nodes, or racks, a job can lose at once and still go on from its images with a given chance.
One line of CSV for each number of nodes, placement and chance.

  --nodes LIST     (8,16,32,64,128,256,512,1024,2048)
  --replicas LIST  of each node's image on other nodes (1,2,3,4)
  --parity LIST    groups of nodes, as data+parity (8+1,8+2)
  --racks COUNT    all equally large; for numbers of nodes that they divide (8)
  --chances LIST   (0.9,0.99,0.999)
  --trials COUNT   jobs that are drawn to check what is counted (2000)
  --seed N         of them (1)

Placements: random (other nodes), ring (the next nodes), apart (random, in racks of their own), parity.
most: lost at once; chance: counted, for that many (of apart, for nodes: drawn); drawn: the same, drawn.";

const HEADER: &str = "lost,placement,copies,nodes,racks,wanted,most,chance,drawn";

struct Arguments {
    nodes: Vec<u32>,
    replicas: Vec<u32>,
    parity: Vec<(u32, u32)>,
    racks: u32,
    chances: Vec<f64>,
    trials: u32,
    seed: u64,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments {
        nodes: (3..=11).map(|power| 1 << power).collect(),
        replicas: vec![1, 2, 3, 4],
        parity: vec![(8, 1), (8, 2)],
        racks: 8,
        chances: vec![0.9, 0.99, 0.999],
        trials: 2000,
        seed: 1,
    };
    let number = |text: &str, most: u32| text.parse().ok().filter(|number| (1..=most).contains(number));
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(None);
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
        match word.as_str() {
            "--nodes" => arguments.nodes = list(&word, &value, |text| number(text, 65_536).filter(|nodes| *nodes > 1))?,
            "--replicas" => arguments.replicas = list(&word, &value, |text| number(text, 64))?,
            "--parity" => {
                arguments.parity = list(&word, &value, |text| {
                    let (data, parity) = text.split_once('+')?;
                    Some((number(data, 256)?, number(parity, 256)?))
                })?;
            }
            "--racks" => arguments.racks = (scaled(&word, &value, 1.0)? as u32).max(2),
            "--chances" => {
                let is_chance = |chance: &f64| (0.0..1.0).contains(chance);
                arguments.chances = list(&word, &value, |text| text.parse().ok().filter(is_chance))?;
            }
            "--trials" => arguments.trials = scaled(&word, &value, 1.0)? as u32,
            "--seed" => arguments.seed = scaled(&word, &value, 1.0)?,
            _ => return Err(format!("restarts: unknown option {word}\n{USAGE}")),
        }
    }
    Ok(Some(arguments))
}

fn lines(arguments: &Arguments) -> Result<(), Infallible> {
    say!("{HEADER}");
    let mut random = Random::new(arguments.seed);
    for &nodes in &arguments.nodes {
        for &wanted in &arguments.chances {
            for &replicas in arguments.replicas.iter().filter(|replicas| **replicas < nodes) {
                let copies = &replicas.to_string();
                let anywhere = (Placement::Random { replicas }, Layout::Anywhere { replicas });
                let next = (Placement::Ring { replicas }, Layout::Next { replicas });
                counted(arguments, nodes, wanted, ("random", copies), &mut random, anywhere);
                counted(arguments, nodes, wanted, ("ring", copies), &mut random, next);
                if nodes.is_multiple_of(arguments.racks) && replicas < arguments.racks {
                    in_racks(arguments, nodes, wanted, replicas, &mut random);
                }
            }
            for &(data, parity) in arguments.parity.iter().filter(|(data, parity)| data + parity <= nodes) {
                let size = data + parity;
                counted(
                    arguments,
                    nodes,
                    wanted,
                    ("parity", &format!("{data}+{parity}")),
                    &mut random,
                    (Placement::Parity { data, parity }, Layout::Groups { size, parity }),
                );
            }
        }
    }
    Ok(())
}

fn counted(
    arguments: &Arguments,
    nodes: u32,
    wanted: f64,
    (name, copies): (&str, &str),
    random: &mut Random,
    (placement, layout): (Placement, Layout),
) {
    let most = most_lost(nodes, placement, wanted);
    let chance = chance(nodes, most, placement);
    let drawn = drawn(layout, nodes, most, arguments.trials, random);
    say!("nodes,{name},{copies},{nodes},,{wanted},{most},{chance:.6},{drawn:.4}");
}

/// Racks that are lost whole, and single nodes, where replicas are in racks of their own.
fn in_racks(arguments: &Arguments, nodes: u32, wanted: f64, replicas: u32, random: &mut Random) {
    let (racks, trials) = (arguments.racks, arguments.trials);
    let layouts = [
        ("random", false, Layout::Anywhere { replicas }),
        ("apart", true, Layout::Apart { replicas, racks }),
    ];
    for (name, apart, layout) in layouts {
        let chance = |lost| chance_of_racks(nodes, racks, lost, replicas, apart);
        let most = (1..racks)
            .take_while(|lost| chance(*lost) >= wanted)
            .last()
            .unwrap_or(0);
        let drawn = drawn_racks(layout, nodes, racks, most, trials, random);
        say!(
            "racks,{name},{replicas},{nodes},{racks},{wanted},{most},{:.6},{drawn:.4}",
            chance(most)
        );
    }
    let layout = Layout::Apart { replicas, racks };
    let most = most_drawn(layout, nodes, wanted, trials, random);
    let drawn = drawn(layout, nodes, most, trials, random);
    say!("nodes,apart,{replicas},{nodes},{racks},{wanted},{most},{drawn:.6},{drawn:.4}");
}

pub fn restarts(words: impl Iterator<Item = String>) -> ExitCode {
    print(parse(words), USAGE, lines)
}
