//! A hash function with the same results on every machine and in every version. Consistent hashing and the
//! assignment of clients to tag targets rely on it.

/// Hashes a value with 64-bit FNV-1a and a final mixing step. Different salts give independent hashes.
pub(crate) fn hash(salt: u64, value: &str) -> u64 {
    let fnv_hash = value
        .bytes()
        .fold(FNV_OFFSET ^ salt, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    let mixed = (fnv_hash ^ (fnv_hash >> 32)).wrapping_mul(MIX_MULTIPLIER);
    mixed ^ (mixed >> 29)
}

/// The offset basis of 64-bit FNV.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// The prime of 64-bit FNV.
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
/// The multiplier of the mixing step: an odd number with well-distributed bits, from SplitMix64.
const MIX_MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_spread_and_differ_by_salt() {
        let share =
            |salt| (0..10_000).filter(|n| hash(salt, &format!("user-{n}")) % 100 < 10).count();
        for salt in [0, 1, u64::MAX] {
            assert!((850..1150).contains(&share(salt)), "{}", share(salt));
        }
        let in_both_shares = (0..10_000).filter(|n| {
            let user = format!("user-{n}");
            hash(1, &user) % 100 < 10 && hash(2, &user) % 100 < 10
        });
        assert!(
            (50..150).contains(&in_both_shares.count()),
            "hashes with different salts are independent"
        );
    }
}
