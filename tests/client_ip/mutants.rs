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
    pub(crate) const BROKEN: [Self; 19] = [
        Self::Leftmost,
        Self::FirstLineOnly,
        Self::LastLineOnly,
        Self::SkipsBroken,
        Self::BrokenYieldsTheLastGood,
        Self::SkipsEmpty,
        Self::MappedStays,
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
            zeros_may_lead: self == Self::ZerosMayLead,
            any_port: self == Self::AnyPort,
            unspecified_is_valid: self == Self::UnspecifiedIsValid,
        }
    }
}
