use smallvec::SmallVec;

/// A list with one entry for each policy of a layer: up to four cost no allocation.
pub(crate) type Few<T> = SmallVec<[T; 4]>;
