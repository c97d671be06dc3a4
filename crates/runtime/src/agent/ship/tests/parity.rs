//! Pieces of parity are made, sent, and used by agents that talk over sockets.

use super::*;
use crate::agent::ship::rebuild::Order;

const NUMBER: u64 = 4;
const SET: u64 = 9;

/// A node, and where others reach it.
struct Node {
    shipping: Shipping,
    address: SocketAddr,
    place: Option<Place>,
}

impl Node {
    fn new(number: u32, on_disk: bool) -> Node {
        let place = on_disk.then(Place::new);
        let shelf = place.as_ref().map_or_else(Shelf::in_memory, Place::shelf);
        let (shipping, address) = agent(number, shelf);
        Node {
            shipping,
            address,
            place,
        }
    }

    /// Changes a byte of a file.
    fn damage(&self, name: &str, at: u64) {
        let path = self.place.as_ref().expect("it has a disk").0.join(name);
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    }
}

fn piece(index: u32) -> What {
    What::Piece {
        number: NUMBER,
        set: SET,
        index,
    }
}

/// So many nodes, the first of them with an image each; the others hold the pieces of their set. The images are of
/// different length, and some have data beside them.
struct Cluster {
    nodes: Vec<Node>,
    offers: Vec<Offer>,
    members: u32,
    pieces: u32,
}

impl Cluster {
    fn new(members: u32, pieces: u32, on_disk: bool) -> Cluster {
        let mut nodes: Vec<Node> = (0..members + pieces).map(|node| Node::new(node, on_disk)).collect();
        let (mut writer, _) = agent(99, Shelf::in_memory());
        let made = |rank: u32| {
            let image = parcel(rank, NUMBER, 900_000 + u64::from(rank) * 56_008);
            with_beside(image, u64::from(rank % 3) * 70_001)
        };
        let offers: Vec<Offer> = (0..members).map(|rank| made(rank).offer).collect();
        for rank in 0..members {
            for node in [rank, members] {
                writer.ship(made(rank), node, &[nodes[node as usize].address]).unwrap();
                events(&nodes[node as usize].shipping, 1);
            }
        }
        let set = Set {
            number: NUMBER,
            set: SET,
            members: (0..members).collect(),
            pieces,
        };
        let holder = &nodes[members as usize].shipping;
        holder.encode(set, Arc::default()).unwrap();
        let made = events(holder, 1);
        assert!(matches!(made[0], Event::Encoded { result: Ok(_), .. }), "{made:?}");
        for index in 1..pieces {
            let to = members + index;
            let address = nodes[to as usize].address;
            let holder = &mut nodes[members as usize].shipping;
            let parcel = holder.keeper().parcel(piece(index)).unwrap();
            holder.keeper().forget(piece(index));
            holder.ship(parcel, to, &[address]).unwrap();
            let what = piece(index);
            assert_eq!(events(&nodes[to as usize].shipping, 1), [Event::Holds { what }]);
        }
        let holder = nodes[members as usize].shipping.keeper();
        for rank in 0..members {
            holder.forget(image(rank, NUMBER));
        }
        Cluster {
            nodes,
            offers,
            members,
            pieces,
        }
    }

    /// Has the image of `rank` made anew by a node that had nothing of the set, without what `lost` nodes had.
    fn rebuild(
        &self,
        rank: u32,
        lost: &[u32],
        through: &[(u32, SocketAddr)],
    ) -> (Node, Result<Offer, String>, Vec<String>) {
        let to = Node::new(50, false);
        let is_there = |node: &u32| !lost.contains(node);
        let mut addresses: std::collections::HashMap<u32, Vec<SocketAddr>> = (0..)
            .zip(&self.nodes)
            .map(|(node, at)| (node, vec![at.address]))
            .collect();
        addresses.extend(through.iter().map(|(node, address)| (*node, vec![*address])));
        let order = Order {
            rank,
            number: NUMBER,
            set: SET,
            members: (0..self.members).filter(is_there).map(|rank| (rank, rank)).collect(),
            pieces: (0..self.pieces)
                .map(|index| (index, self.members + index))
                .filter(|(_, node)| is_there(node))
                .collect(),
            addresses,
        };
        to.shipping.rebuild(order).unwrap();
        let mut answer = events(&to.shipping, 1);
        let Some(Event::Rebuilt { result, defects, .. }) = answer.pop() else {
            panic!("{answer:?}");
        };
        let defects = defects
            .iter()
            .map(|(what, node, why)| format!("{what} on {node}: {why}"));
        (to, result, defects.collect())
    }
}

#[test]
fn an_image_is_made_anew_from_what_is_left_of_its_set() {
    let mut random = Random(21);
    for (members, pieces) in [(1, 1), (2, 1), (5, 1), (1, 2), (3, 2), (4, 3)] {
        let cluster = Cluster::new(members, pieces, members % 2 == 0);
        let held = |node: &Node| node.shipping.keeper().bytes();
        let [images, own] = held(&cluster.nodes[members as usize]);
        assert_eq!(images, 0, "the copies were dropped");
        let longest = cluster
            .offers
            .iter()
            .map(|offer| offer.length + offer.beside)
            .max()
            .unwrap();
        assert!((longest..longest + 8192).contains(&own), "{own} for {longest}");
        for rank in 0..members {
            let mut lost = vec![rank];
            while lost.len() < pieces as usize && lost.len() < (members + pieces - 1) as usize {
                let other = random.below(u64::from(members + pieces)) as u32;
                if !lost.contains(&other) {
                    lost.push(other);
                }
            }
            let (to, result, defects) = cluster.rebuild(rank, &lost, &[]);
            assert_eq!(
                (result, defects),
                (Ok(cluster.offers[rank as usize].clone()), Vec::new())
            );
            assert_has(&to.shipping, &cluster.offers[rank as usize]);
            assert_eq!(to.shipping.keeper().held(piece(0)), None, "nothing else stays");
        }
    }
}

#[test]
fn an_image_is_made_anew_over_connections_that_are_cut() {
    let mut random = Random(22);
    let cluster = Cluster::new(3, 2, false);
    let proxy = |node: u32| {
        let cuts: Vec<Blow> = (0..4).map(|_| Blow::Cut(random.below(800_000))).collect();
        (node, Proxy::to(cluster.nodes[node as usize].address, cuts))
    };
    let proxies: Vec<(u32, Proxy)> = [0, 2, 3, 4].map(proxy).into();
    let through: Vec<(u32, SocketAddr)> = proxies.iter().map(|(node, proxy)| (*node, proxy.address)).collect();
    for lost in [&[1][..], &[1, 0], &[1, 3]] {
        let (to, result, defects) = cluster.rebuild(1, lost, &through);
        assert_eq!((result, defects), (Ok(cluster.offers[1].clone()), Vec::new()));
        assert_has(&to.shipping, &cluster.offers[1]);
    }
    assert!(proxies.iter().any(|(_, proxy)| proxy.blows.lock().unwrap().len() < 4));
}

#[test]
fn what_is_damaged_is_named_and_another_piece_is_used() {
    let cluster = Cluster::new(2, 3, true);
    cluster.nodes[2].damage("set-9.0-4", 500_000);
    let (to, result, defects) = cluster.rebuild(0, &[0], &[]);
    assert_eq!(result, Ok(cluster.offers[0].clone()));
    assert_has(&to.shipping, &cluster.offers[0]);
    let damaged = "piece 0 of set 9 of wave 4 on 2: the piece cannot be read: its bytes are damaged";
    assert_eq!(defects, [damaged]);
    // Its head, and an image.
    cluster.nodes[3].damage("set-9.1-4", 40);
    let (_, result, defects) = cluster.rebuild(0, &[0], &[]);
    assert_eq!((result.is_ok(), defects.len()), (true, 2));
    assert!(defects[1].contains("its head is damaged"), "{defects:?}");
    cluster.nodes[1].damage("rank-1.image-4", 800_000);
    let (to, result, defects) = cluster.rebuild(0, &[0], &[]);
    let why = result.unwrap_err();
    assert!(why.starts_with("not enough of set 9 of wave 4 is left ("), "{why}");
    for name in ["image 4 of rank 1 on node 1: ", "piece 0 of set 9", "piece 1 of set 9"] {
        assert!(why.contains(name), "{why}");
    }
    assert_eq!(defects.len(), 3);
    assert_eq!(to.shipping.keeper().held(image(0, NUMBER)), None);
}

#[test]
fn without_enough_of_a_set_nothing_is_made() {
    let cluster = Cluster::new(3, 1, false);
    let (_, result, defects) = cluster.rebuild(0, &[0, 1], &[]);
    assert!(result.unwrap_err().starts_with("not enough of set 9"));
    assert!(defects.is_empty());
    let (_, result, _) = cluster.rebuild(0, &[0, 3], &[]);
    assert!(result.is_err());
    // A node that cannot be reached has no defect.
    let (_taken, nowhere) = crate::sys::nobodys_address();
    let (_, result, defects) = cluster.rebuild(0, &[0], &[(1, nowhere)]);
    assert!(result.unwrap_err().contains("image 4 of rank 1 on node 1: "));
    assert!(defects.is_empty());
}

#[test]
fn pieces_that_are_not_wanted_or_cannot_be_made_leave_nothing() {
    let node = Node::new(1, true);
    let set = |members: Vec<u32>| Set {
        number: NUMBER,
        set: SET,
        members,
        pieces: 2,
    };
    let result = |node: &Node| match events(&node.shipping, 1).pop() {
        Some(Event::Encoded { result, .. }) => result.unwrap_err(),
        other => panic!("{other:?}"),
    };
    node.shipping.encode(set(vec![0]), Arc::default()).unwrap();
    assert_eq!(result(&node), "image 4 of rank 0 is not on this node");
    let (mut writer, _) = agent(0, Shelf::in_memory());
    writer.ship(parcel(0, NUMBER, 900_000), 1, &[node.address]).unwrap();
    events(&node.shipping, 1);
    node.shipping
        .encode(set(vec![0]), Arc::new(AtomicBool::new(true)))
        .unwrap();
    assert_eq!(result(&node), "it is not wanted any more");
    node.shipping.encode(set(vec![0, 0]), Arc::default()).unwrap();
    assert!(result(&node).contains("named twice"));
    assert_eq!(node.place.as_ref().unwrap().names(), ["rank-0.image-4"]);
}

#[test]
fn pieces_in_memory_that_has_no_room_are_refused_before_they_are_made() {
    let node = Node::new(1, false);
    let keeper = node.shipping.keeper();
    let large = Offer {
        length: 1 << 50,
        ..parcel(0, NUMBER, 900).offer
    };
    let name = keeper.temporary(large.what);
    keeper.shelf().new_file(&name).unwrap().write_all(&[0; 900]).unwrap();
    keeper.name(&name, large).unwrap();
    let set = Set {
        number: NUMBER,
        set: SET,
        members: vec![0],
        pieces: 2,
    };
    // Should they be made all the same, that ends at once.
    node.shipping.encode(set, Arc::new(AtomicBool::new(true))).unwrap();
    let made = events(&node.shipping, 1);
    let [Event::Encoded { result: Err(why), .. }] = made.as_slice() else {
        panic!("{made:?}");
    };
    // Room for both pieces.
    let wanted = "it needs 2147483648 MiB of memory, and ";
    assert!(why.starts_with(wanted) && why.ends_with(" MiB are left"), "{why}");
    assert_eq!(keeper.shelf().names(), ["rank-0.image-4"]);
}
