//! What is kept, as trees of splits: a node holds the rows of up to 128 tokens, and its ancestors those before them.
//!
//! Rows depend on the tokens up to their own and on nothing else, so conversations that begin alike share nodes, a branch is a
//! second child, and any prefix of what is kept can be used. A key owns a tree; nothing crosses keys.

use std::collections::HashMap;
use std::sync::Arc;

use super::Key;
use super::rows::Rows;

/// Tokens of a full node: one split of the KV cache.
pub(super) const SPLIT: usize = assay_kernels::contract::SPLIT;

/// What a node takes beside its rows and tokens, roughly, in bytes.
const OVERHEAD: u64 = 256;

/// Host memory that the state of a conversation of `tokens` takes, where one split of all layers has `split_bytes`; for a limit that
/// holds one and no more.
pub fn kept_bytes(tokens: usize, split_bytes: usize) -> u64 {
    tokens.div_ceil(SPLIT) as u64 * cost(split_bytes, SPLIT)
}

/// What a node of `tokens` takes. The tokens are the child's name in its parent as well.
fn cost(bytes: usize, tokens: usize) -> u64 {
    (bytes + 8 * tokens) as u64 + OVERHEAD
}

/// The rows of up to a split's tokens.
#[derive(Debug)]
pub(super) struct Block {
    /// 1 to [`SPLIT`] tokens.
    pub(super) tokens: Box<[u32]>,
    /// One split of every layer, layers in order. Rows of positions after the tokens are never read.
    pub(super) bytes: Rows,
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes.bytes()
    }
}

impl Block {
    fn cost(&self) -> u64 {
        cost(self.bytes.len(), self.tokens.len())
    }
    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() == SPLIT
    }
}

type NodeId = u64;

#[derive(Debug)]
struct Node {
    /// `None` for a tree's root, which has no rows.
    above: Option<(NodeId, Arc<Block>)>,
    children: HashMap<Box<[u32]>, NodeId>,
    /// What was decoded after the request that ended here.
    answer: Box<[u32]>,
    /// When it was last published or published again.
    used: u64,
}

impl Node {
    fn new(above: Option<(NodeId, Arc<Block>)>) -> Self {
        Self { above, children: HashMap::new(), answer: Box::default(), used: 0 }
    }
}

/// The longest prefix of some tokens that is kept.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Its rows; of the last block perhaps only a part.
    pub(super) blocks: Vec<Arc<Block>>,
    /// Its length.
    pub(super) tokens: usize,
    /// How many of the tokens after it decode had computed.
    pub(super) answered: usize,
}

/// What publishing did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// Whether the state is kept now: not where it alone exceeds the limit.
    pub kept: bool,
    /// Bytes that were added.
    pub added_bytes: u64,
    /// Bytes of the least recently used that went for it.
    pub evicted_bytes: u64,
}

/// All trees.
#[derive(Debug, Default)]
pub(super) struct Forest {
    nodes: HashMap<NodeId, Node>,
    roots: HashMap<Key, NodeId>,
    next: NodeId,
    clock: u64,
    bytes: u64,
}

impl Forest {
    /// Bytes of everything kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Nodes kept.
    pub(super) fn blocks(&self) -> usize {
        self.nodes.len() - self.roots.len()
    }

    /// Looks the longest prefix of `tokens` up: split by split by hash, each compared in full, then the child that shares most.
    /// Changes nothing.
    pub(super) fn find(&self, key: &Key, tokens: &[u32]) -> Found {
        let mut found = Found::default();
        let Some(mut node) = self.roots.get(key).and_then(|root| self.nodes.get(root)) else { return found };
        loop {
            let rest = &tokens[found.tokens..];
            let full = rest.get(..SPLIT).and_then(|split| self.child(node, split));
            let next = full.map(|child| (SPLIT, child)).or_else(|| self.closest(node, rest));
            let Some((shared, child, block)) =
                next.and_then(|(shared, child)| Some((shared, child, child.above.as_ref()?)))
            else {
                break;
            };
            found.blocks.push(block.1.clone());
            found.tokens += shared;
            node = child;
            if shared < block.1.tokens.len() {
                return found;
            }
            if !block.1.is_full() {
                break;
            }
        }
        found.answered = shared(&node.answer, &tokens[found.tokens..]);
        found
    }

    fn child(&self, node: &Node, tokens: &[u32]) -> Option<&Node> {
        node.children.get(tokens).and_then(|id| self.nodes.get(id))
    }

    /// The child that has the longest beginning in common with `rest`, if any has one.
    fn closest(&self, node: &Node, rest: &[u32]) -> Option<(usize, &Node)> {
        let ranked = node.children.iter().map(|(tokens, &id)| (shared(tokens, rest), std::cmp::Reverse(id)));
        let (shared, std::cmp::Reverse(id)) = ranked.max().filter(|&(shared, _)| shared > 0)?;
        Some((shared, self.nodes.get(&id)?))
    }

    /// Keeps `chain`, whose blocks are full but the last, and drops the least recently used until `limit` bytes hold all.
    /// Either both happen or, where the chain alone is too large, neither.
    pub(super) fn publish(&mut self, key: &Key, chain: &[Arc<Block>], answer: &[u32], limit: u64) -> Published {
        if chain.is_empty() || chain.iter().map(|block| block.cost()).sum::<u64>() > limit {
            return Published::default();
        }
        let (known, path) = self.known(key, chain);
        let missing = &chain[known..];
        let added_bytes = missing.iter().map(|block| block.cost()).sum::<u64>();
        let replaced = missing.first().and_then(|block| self.replaced(path.last().copied(), block));
        if let Some(id) = replaced {
            self.remove(id);
        }
        let before = self.bytes;
        while self.bytes + added_bytes > limit && self.evict(&path) {}
        let evicted_bytes = before - self.bytes;
        self.append(key, &path, missing, answer);
        let nodes = &mut self.nodes;
        self.roots.retain(|_, root| {
            let empty = nodes.get(root).is_none_or(|node| node.children.is_empty());
            if empty {
                nodes.remove(root);
            }
            !empty
        });
        Published { kept: true, added_bytes, evicted_bytes }
    }

    /// Bytes that publishing a chain would add.
    pub(super) fn missing_bytes(&self, key: &Key, chain: &[Arc<Block>]) -> u64 {
        chain[self.known(key, chain).0..].iter().map(|block| block.cost()).sum()
    }

    /// How many blocks of a chain are there, and their nodes from the root on. A block that a longer one covers is there.
    fn known(&self, key: &Key, chain: &[Arc<Block>]) -> (usize, Vec<NodeId>) {
        let Some(&root) = self.roots.get(key) else { return (0, Vec::new()) };
        let mut path = vec![root];
        for block in chain {
            let Some(node) = path.last().and_then(|id| self.nodes.get(id)) else { break };
            let exact = node.children.get(&block.tokens).copied();
            let covering =
                || node.children.iter().find(|(tokens, _)| tokens.starts_with(&block.tokens)).map(|(_, &id)| id);
            match exact.or_else(covering) {
                Some(child) => path.push(child),
                None => break,
            }
        }
        (path.len() - 1, path)
    }

    /// The child that `block` says again and goes on from.
    fn replaced(&self, parent: Option<NodeId>, block: &Block) -> Option<NodeId> {
        let children = &self.nodes.get(&parent?)?.children;
        children.iter().find(|(tokens, _)| block.tokens.starts_with(tokens)).map(|(_, &id)| id)
    }

    fn append(&mut self, key: &Key, path: &[NodeId], missing: &[Arc<Block>], answer: &[u32]) {
        self.clock += 1;
        let mut at = match path.last() {
            Some(&last) => last,
            None => {
                let root = self.insert(Node::new(None));
                self.roots.insert(key.clone(), root);
                root
            }
        };
        for block in missing {
            let child = self.insert(Node::new(Some((at, block.clone()))));
            if let Some(parent) = self.nodes.get_mut(&at) {
                parent.children.insert(block.tokens.clone(), child);
                parent.used = self.clock;
            }
            self.bytes += block.cost();
            at = child;
        }
        for id in path.iter().chain([&at]) {
            if let Some(node) = self.nodes.get_mut(id) {
                node.used = self.clock;
            }
        }
        if let Some(last) = self.nodes.get_mut(&at) {
            last.answer = answer.into();
        }
    }

    fn insert(&mut self, node: Node) -> NodeId {
        self.next += 1;
        self.nodes.insert(self.next, node);
        self.next
    }

    /// Drops the least recently used node that has no children and is not on `path`; whether there was one.
    fn evict(&mut self, path: &[NodeId]) -> bool {
        let leaves = self
            .nodes
            .iter()
            .filter(|(id, node)| node.above.is_some() && node.children.is_empty() && !path.contains(id));
        // Of equals the youngest: the deepest of one conversation.
        let oldest = leaves.min_by_key(|&(&id, node)| (node.used, std::cmp::Reverse(id))).map(|(&id, _)| id);
        oldest.map(|id| self.remove(id)).is_some()
    }

    /// Takes a leaf out.
    fn remove(&mut self, id: NodeId) {
        let Some(Node { above: Some((parent, block)), .. }) = self.nodes.remove(&id) else { return };
        self.bytes -= block.cost();
        let Some(node) = self.nodes.get_mut(&parent) else { return };
        node.children.remove(&block.tokens);
    }
}

/// Tokens that two sequences have in common from their beginning on.
pub(super) fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
