use smallvec::SmallVec;

/// A list with one entry for each policy of a layer. Up to four entries need no allocation.
pub type Few<T> = SmallVec<[T; 4]>;
