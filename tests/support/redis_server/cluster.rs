//! A cluster of Redis servers, whose slots can be moved between its nodes.

use std::collections::HashSet;

use super::{RedisServer, Reply, free_port, until};

/// Three masters that share the slots, without replicas.
#[derive(Debug)]
pub(crate) struct RedisCluster {
    pub(crate) nodes: [RedisServer; 3],
}

impl RedisCluster {
    /// Starts three masters, each with a third of the slots, and waits until all of them know the slots.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts three masters with further arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let nodes = [(); 3].map(|()| cluster_node(arguments));
        for (index, (node, _)) in nodes.iter().enumerate() {
            let (first, last) = (16_384 * index / 3, 16_384 * (index + 1) / 3 - 1);
            node.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).ok();
            node.call(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).ok();
            for (other, bus) in &nodes[..index] {
                node.call(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), bus]).ok();
            }
        }
        let is_ready = |node: &RedisServer| {
            let info = node.call(&["CLUSTER", "INFO"]).text();
            // If the nodes do not require full coverage, their state is `ok` before all slots are known. So the number
            // of slots is checked, too.
            let parts = ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3"];
            parts.iter().all(|part| info.contains(part))
        };
        until("the cluster is formed", || nodes.iter().all(|(node, _)| is_ready(node)));
        Self { nodes: nodes.map(|(node, _)| node) }
    }

    /// Starts a replica of a master. Waits until the replica has the master's data, and all masters know the replica.
    pub(crate) fn replica_of(&self, index: usize) -> RedisServer {
        // With this setting, the replica may take over however long it was suspended.
        let (replica, bus) = cluster_node(&["--cluster-replica-validity-factor", "0"]);
        let (master, port) = (self.id(index), replica.port.to_string());
        self.nodes[index].call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).ok();
        until("the master is known", || replica.call(&["CLUSTER", "NODES"]).text().contains(&master));
        until("it replicates", || {
            replica.call(&["CLUSTER", "REPLICATE", &master]) == Reply::Text(b"OK".into())
        });
        replica.until_role("slave");
        until("all know it", || {
            let knows =
                |node: &RedisServer| node.call(&["CLUSTER", "NODES"]).text().matches("slave").count() == 1;
            self.nodes.iter().all(knows)
        });
        replica
    }

    /// Returns the node that has the slot of `key`.
    pub(crate) fn node_of(&self, key: &str) -> usize {
        match self.nodes[0].call(&["CLUSTER", "KEYSLOT", key]) {
            Reply::Integer(slot) => (0..3).find(|index| slot < 16_384 * (*index as i64 + 1) / 3).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a node that was started again has found the others.
    pub(crate) fn join(&self, index: usize) {
        let is_ready =
            |node: &RedisServer| node.call(&["CLUSTER", "INFO"]).text().contains("cluster_slots_ok:16384");
        until("the node is back", || is_ready(&self.nodes[index]));
    }

    /// Marks the slot of `key` as moving from one node to another, once all nodes agree on the moves so far. Returns
    /// the number of the slot.
    ///
    /// A node that takes over a slot raises its epoch above all epochs that it knows. If it did not know the epoch of
    /// the slot's former owner yet, an older message of that owner would take the slot back, with all of its keys.
    pub(crate) fn begin_to_move(&self, key: &str, from: usize, to: usize) -> String {
        until("the nodes agree on the owners of the slots", || {
            let [first, others @ ..] =
                self.nodes.each_ref().map(|node| owners(&node.call(&["CLUSTER", "NODES"]).text()));
            let epochs: HashSet<_> = first.iter().map(|(_, epoch, _)| epoch).collect();
            epochs.len() == first.len() && others.iter().all(|seen| *seen == first)
        });
        let Reply::Integer(slot) = self.nodes[0].call(&["CLUSTER", "KEYSLOT", key]) else {
            panic!("no slot")
        };
        let slot = slot.to_string();
        self.nodes[to].call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]).ok();
        self.nodes[from].call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]).ok();
        slot
    }

    /// Moves the keys of a slot that is moving.
    pub(crate) fn move_keys(&self, slot: &str, from: usize, to: usize) {
        let port = self.nodes[to].port.to_string();
        let Reply::List(keys) = self.nodes[from].call(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]) else {
            panic!("no list")
        };
        for key in keys {
            self.nodes[from].call(&["MIGRATE", "127.0.0.1", &port, &key.text(), "0", "30000"]).ok();
        }
    }

    /// Gives the slot to the other node, which tells the third node.
    pub(crate) fn finish_moving(&self, slot: &str, from: usize, to: usize) {
        for node in [to, from] {
            self.nodes[node].call(&["CLUSTER", "SETSLOT", slot, "NODE", &self.id(to)]).ok();
        }
    }

    fn id(&self, index: usize) -> String {
        self.nodes[index].call(&["CLUSTER", "MYID"]).text()
    }

    pub(crate) fn urls(&self) -> [String; 3] {
        [0, 1, 2].map(|index: usize| self.nodes[index].url())
    }
}

/// Starts a node of a cluster that has no slots yet. Returns the node and the port of its cluster bus.
fn cluster_node(arguments: &[&str]) -> (RedisServer, String) {
    let bus = free_port().to_string();
    let mut options =
        vec!["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
    options.extend(arguments);
    (RedisServer::with(&options), bus)
}

/// Returns, from the reply to `CLUSTER NODES`, the name, the epoch and the slots of each master, ordered by name. Slots
/// that are moving are left out.
fn owners(nodes: &str) -> Vec<(String, String, Vec<String>)> {
    let mut owners: Vec<_> = nodes
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| fields[2].contains("master"))
        .map(|fields| {
            let slots = fields[8..].iter().filter(|slots| !slots.starts_with('['));
            (fields[0].to_owned(), fields[6].to_owned(), slots.map(|slots| (*slots).to_owned()).collect())
        })
        .collect();
    owners.sort();
    owners
}
