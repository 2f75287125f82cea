//! A naive second implementation. It builds whole lists from left to right, and then evaluates them.
//!
//! `tests/client_ip/main.rs` and `fuzz/` compare [`ClientIp`](tower_throttle::key::ClientIp) with this model. The model
//! can also be a mutant.
#![allow(dead_code, reason = "each program that includes it uses a part")]

mod mutants;
mod naive_parser;
mod scenario;
mod split;

use std::net::IpAddr;

pub(crate) use mutants::Mutant;
pub(crate) use naive_parser::Address;
use naive_parser::{Lax, Networks, element, prefix, viewer};
pub(crate) use scenario::{Heard, How, Missing, Peer, Setup, Source, Trust};
use split::{is_tchar, is_token, quoted_from_the_left, split, trimmed, unquoted};

/// The maximum number of pairs in one element of `Forwarded`. The standard defines four.
const MAX_PAIRS: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Model {
    mutant: Mutant,
    source: Source,
    only_from: Option<Networks>,
    trusted: Option<Networks>,
    nat64: Option<u128>,
}

impl Model {
    /// Creates a model. Returns `None` if the setup is invalid.
    pub(crate) fn new(setup: &Setup, mutant: Mutant) -> Option<Self> {
        let source = setup.source.clone();
        let only_from = match &setup.only_from {
            Some(list) => Some(Networks::new(list)?),
            None => None,
        };
        let trusted = match source.trust() {
            Some(Trust::Cidrs(list)) => Some(Networks::new(list).filter(|all| !all.has_whole_family())?),
            Some(Trust::Hops(0)) => return None,
            _ => None,
        };
        let nat64 = match setup.nat64 {
            Some(text) => Some(prefix(text)?),
            None => None,
        };
        Some(Self { mutant, source, only_from, trusted, nat64 })
    }

    /// Returns the address of the client, and how it was found.
    pub(crate) fn answer(&self, heard: &Heard) -> Result<(IpAddr, How), Missing> {
        let (address, how) = self.find(heard)?;
        Ok((address.into(), how))
    }

    fn find(&self, heard: &Heard) -> Result<(Address, How), Missing> {
        let peer = match heard.peer {
            Peer::At(ip) => Some(self.own(Address::from(ip).canonical(self.mutant.lax()))),
            _ => None,
        };
        // Both are lists of peers that may report the addresses of others.
        for networks in [&self.only_from, &self.trusted].into_iter().flatten() {
            match heard.peer {
                Peer::Absent => return Err(Missing::NoPeer),
                Peer::Unix if !networks.unix => return Err(Missing::UnixPeer),
                _ if self.mutant == Mutant::PeerIsIgnored => {}
                _ => {
                    if let Some(peer) = peer.filter(|peer| !networks.contains(*peer)) {
                        return Ok((peer, How::Peer));
                    }
                }
            }
        }

        let mut lines: Vec<&[u8]> = Vec::new();
        for (name, value) in &heard.lines {
            if *name == self.source.name() {
                lines.push(value);
            }
        }
        match &self.source {
            Source::Header(_) => self.single(&lines, element),
            Source::CloudFront => self.single(&lines, viewer),
            Source::XForwardedFor(trust) => {
                let lists = self.listed(lines).into_iter().map(|line| self.plain(line)).collect();
                self.listed_in(lists, trust, peer)
            }
            Source::Forwarded(trust) => {
                let lists = self.listed(lines).into_iter().map(|line| self.forwarded(line)).collect();
                self.listed_in(lists, trust, peer)
            }
        }
    }

    /// Returns the IPv4 address within an address of the operator's own NAT64.
    fn own(&self, address: Address) -> Address {
        let prefix = self.nat64.filter(|_| self.mutant != Mutant::OwnNat64Stays);
        prefix.map_or(address, |prefix| address.without(prefix))
    }

    /// Returns the client of an entry.
    fn client(&self, entry: Option<Address>) -> Option<Address> {
        entry
            .map(|address| self.own(address))
            .filter(|address| !address.is_no_client() || self.mutant.lax().unspecified_is_valid)
    }

    fn single(
        &self,
        lines: &[&[u8]],
        read: fn(&[u8], Lax) -> Option<Address>,
    ) -> Result<(Address, How), Missing> {
        let line = match lines {
            [] => return Err(Missing::NoHeader),
            [line] => line,
            [.., last] if self.mutant == Mutant::LastOfSeveralLines => last,
            _ => return Err(Missing::Several),
        };
        let found = self.client(read(trimmed(line), self.mutant.lax()));
        found.map(|found| (found, How::Decisive)).ok_or(Missing::Broken)
    }

    /// Returns the lines that are read.
    fn listed<'a>(&self, mut lines: Vec<&'a [u8]>) -> Vec<&'a [u8]> {
        match self.mutant {
            Mutant::FirstLineOnly => lines.truncate(1),
            Mutant::LastLineOnly => lines = lines.split_off(lines.len().saturating_sub(1)),
            _ => {}
        }
        lines
    }

    fn plain(&self, line: &[u8]) -> Vec<Option<Address>> {
        let parts = line.split(|byte| *byte == b',').map(trimmed);
        let parts = parts.filter(|part| !part.is_empty() || self.mutant != Mutant::SkipsEmpty);
        parts.map(|part| self.client(element(part, self.mutant.lax()))).collect()
    }

    fn forwarded(&self, line: &[u8]) -> Vec<Option<Address>> {
        let mut all = Vec::new();
        for part in split(line, b',', &self.quoted(line)) {
            if !trimmed(part).is_empty() || self.mutant != Mutant::SkipsEmpty {
                all.push(self.forwarded_element(part));
            }
        }
        all
    }

    /// Returns for each byte of a line whether it is within quotes.
    ///
    /// Pairs of quotes are matched from the right. A client can write any text, but this text is always to the left of
    /// the text of its proxy.
    fn quoted(&self, line: &[u8]) -> Vec<bool> {
        let mut quoted = vec![false; line.len()];
        match self.mutant {
            Mutant::QuotesAreNothing => return quoted,
            Mutant::QuotesFromTheLeft => return quoted_from_the_left(line),
            _ => {}
        }
        // The position of each quote, and whether the quote is escaped by backslashes, if it is within quotes.
        let mut quotes: Vec<(usize, bool)> = Vec::new();
        for (place, _) in line.iter().enumerate().filter(|(_, byte)| **byte == b'"') {
            let backslashes = line[..place].iter().rev().take_while(|byte| **byte == b'\\').count();
            quotes.push((place, backslashes % 2 == 1 && self.mutant != Mutant::EscapesAreNothing));
        }
        while let Some((end, _)) = quotes.pop() {
            while quotes.last().is_some_and(|(_, is_letter)| *is_letter) {
                quotes.pop();
            }
            let start = quotes.pop().map_or(0, |(start, _)| start);
            quoted[start..=end].fill(true);
        }
        quoted
    }

    /// Returns the address in `for` of an element.
    fn forwarded_element(&self, text: &[u8]) -> Option<Address> {
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for pair in split(text, b';', &quoted_from_the_left(text)).into_iter().map(trimmed) {
            if pair.is_empty() {
                continue;
            }
            let middle = pair.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (&pair[..middle], &pair[middle + 1..]);
            let colons = |byte: &u8| self.mutant == Mutant::ColonsNeedNoQuotes && b":[]".contains(byte);
            let is_plain = !value.is_empty() && value.iter().all(|byte| is_tchar(byte) || colons(byte));
            let value = if is_plain { value.to_vec() } else { unquoted(value)? };
            pairs.push((is_token(name).then(|| name.to_ascii_lowercase())?, value));
        }
        if pairs.len() > MAX_PAIRS {
            return None;
        }
        for (place, (name, _)) in pairs.iter().enumerate() {
            if pairs[..place].iter().any(|(other, _)| other == name)
                && self.mutant != Mutant::TheFirstForOfTwo
            {
                return None;
            }
        }
        let (_, value) = pairs.iter().find(|(name, _)| name == b"for")?;
        self.client(element(value, self.mutant.lax()))
    }

    fn listed_in(
        &self,
        lists: Vec<Vec<Option<Address>>>,
        trust: &Trust,
        peer: Option<Address>,
    ) -> Result<(Address, How), Missing> {
        let no_header = lists.is_empty();
        let mut all = lists.concat();
        if self.mutant == Mutant::SkipsBroken {
            all.retain(Option::is_some);
        }
        if self.mutant == Mutant::Leftmost {
            all.truncate(1);
        }
        match (trust, &self.trusted) {
            (Trust::Hops(_), _) if no_header => Err(Missing::NoHeader),
            (Trust::Hops(hops), _) => self.at(&all, *hops),
            (Trust::Cidrs(_), _) if no_header => match peer {
                Some(peer) => Ok((peer, How::TrustedPeer)),
                None => Err(Missing::UnixPeer),
            },
            (Trust::Cidrs(_), Some(trusted)) => self.walk(&all, trusted, peer),
            (Trust::Cidrs(_), None) => unreachable!("made with its networks"),
        }
    }

    fn at(&self, all: &[Option<Address>], hops: usize) -> Result<(Address, How), Missing> {
        let hops = match self.mutant {
            Mutant::HopsAreClamped => hops.min(all.len()),
            Mutant::Leftmost => all.len(),
            _ => hops,
        };
        let place = all.len().checked_sub(hops).ok_or(Missing::TooFew)?;
        let found = all.get(place).copied().flatten().ok_or(Missing::Broken)?;
        Ok((found, How::Decisive))
    }

    fn walk(
        &self,
        all: &[Option<Address>],
        trusted: &Networks,
        peer: Option<Address>,
    ) -> Result<(Address, How), Missing> {
        let mut last_good = peer;
        for found in all.iter().rev() {
            match found {
                Some(found) if trusted.contains(*found) => last_good = Some(*found),
                Some(found) => return Ok((*found, How::Decisive)),
                None if self.mutant == Mutant::BrokenYieldsTheLastGood => break,
                None => return Err(Missing::Broken),
            }
        }
        let last = if self.mutant == Mutant::AllTrustedIsThePeer { peer } else { last_good };
        last.map(|found| (found, How::AllTrusted)).ok_or(Missing::Broken)
    }
}
