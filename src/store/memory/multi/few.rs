use smallvec::SmallVec;

/// As many as there are policies in one layer: up to four cost no allocation.
pub type Few<T> = SmallVec<[T; 4]>;
