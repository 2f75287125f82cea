//! The mutants: models that are wrong on purpose.

use super::naive_parser::Lax;

/// The fault of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    Faithful,
    /// Takes the leftmost address, which any client can write.
    Leftmost,
    FirstLineOnly,
    LastLineOnly,
    SkipsBroken,
    /// Skips a broken element and takes the last valid one, as nginx does.
    BrokenYieldsTheLastGood,
    SkipsEmpty,
    /// Does not match `::ffff:10.0.0.1` with `10.0.0.0/8`.
    MappedStays,
    /// Does not take `64:ff9b::192.0.2.1` for `192.0.2.1`.
    Nat64Stays,
    /// Takes `64:ff9b::10.0.0.1` for `10.0.0.1`, which may be a trusted proxy.
    PrivateNat64,
    /// Does not convert the addresses of the operator's own NAT64.
    OwnNat64Stays,
    ZerosMayLead,
    AnyPort,
    UnspecifiedIsValid,
    /// Accepts fewer hops than configured.
    HopsAreClamped,
    PeerIsIgnored,
    AllTrustedIsThePeer,
    /// Matches quotes from the left, so a quote that a client leaves open swallows the text of its proxy.
    QuotesFromTheLeft,
    QuotesAreNothing,
    EscapesAreNothing,
    TheFirstForOfTwo,
    ColonsNeedNoQuotes,
    LastOfSeveralLines,
}

impl Mutant {
    pub(crate) const BROKEN: [Self; 22] = [
        Self::Leftmost,
        Self::FirstLineOnly,
        Self::LastLineOnly,
        Self::SkipsBroken,
        Self::BrokenYieldsTheLastGood,
        Self::SkipsEmpty,
        Self::MappedStays,
        Self::Nat64Stays,
        Self::PrivateNat64,
        Self::OwnNat64Stays,
        Self::ZerosMayLead,
        Self::AnyPort,
        Self::UnspecifiedIsValid,
        Self::HopsAreClamped,
        Self::PeerIsIgnored,
        Self::AllTrustedIsThePeer,
        Self::QuotesFromTheLeft,
        Self::QuotesAreNothing,
        Self::EscapesAreNothing,
        Self::TheFirstForOfTwo,
        Self::ColonsNeedNoQuotes,
        Self::LastOfSeveralLines,
    ];

    pub(super) fn lax(self) -> Lax {
        Lax {
            mapped_stays: self == Self::MappedStays,
            nat64_stays: self == Self::Nat64Stays,
            private_nat64: self == Self::PrivateNat64,
            zeros_may_lead: self == Self::ZerosMayLead,
            any_port: self == Self::AnyPort,
            unspecified_is_valid: self == Self::UnspecifiedIsValid,
        }
    }
}
