//! What can be wrong on purpose.

use super::naive_parser::Lax;

/// What is wrong with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    Faithful,
    /// Anybody can write the leftmost.
    Leftmost,
    FirstLineOnly,
    LastLineOnly,
    SkipsBroken,
    /// What is broken is passed over to the last good one, as nginx does.
    BrokenIsTheLastGood,
    SkipsEmpty,
    /// `::ffff:10.0.0.1` is not in `10.0.0.0/8`.
    MappedStays,
    ZerosMayLead,
    AnyPort,
    NobodyIsSomebody,
    /// Too few are as many as there are.
    HopsAreClamped,
    PeerIsNotLookedAt,
    AllTrustedIsThePeer,
    /// A quote that a client leaves open swallows what its proxy says.
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
        Self::BrokenIsTheLastGood,
        Self::SkipsEmpty,
        Self::MappedStays,
        Self::ZerosMayLead,
        Self::AnyPort,
        Self::NobodyIsSomebody,
        Self::HopsAreClamped,
        Self::PeerIsNotLookedAt,
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
            nobody_is_somebody: self == Self::NobodyIsSomebody,
        }
    }
}
