package merchants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// insertKey adds a key. A key that exists stays as it is, with its merchant: a revoked one is
// not revived. The clock is read once, so a life that PostgreSQL rounds to nothing is none.
const insertKey = `
-- merchants.insertKey
insert into api_keys
       (key_hash, prefix, merchant_id, scopes, created_at, expires_at)
select $1, $2, $3, $4, birth, birth + $5::interval
  from clock_timestamp() as birth
on conflict (key_hash) do nothing`

// Grant is what an API key may be used for.
type Grant struct {
	Merchant string
	Scopes   []Scope
	Life     *time.Duration // after which it expires; nil: never
}

// IssueKey queues an API key. The batch is refused for a life below a microsecond, by
// api_keys_expire_after_their_birth; for no scope or an unknown one, by api_keys_known_scopes;
// and for an unknown merchant, by api_keys_merchant_id_fkey.
func IssueKey(b *pgx.Batch, key string, g Grant) {
	b.Queue(insertKey, hashOf(key), Prefix(key), g.Merchant, g.Scopes, g.Life)
}

// AddKey queues an API key of a merchant, with every scope of a merchant's own (Scopes) and
// without end.
func AddKey(b *pgx.Batch, merchant, key string) {
	IssueKey(b, key, Grant{Merchant: merchant, Scopes: Scopes()})
}

// Key is an API key as its operators see it. The key itself is stored nowhere.
type Key struct {
	Prefix    string     `json:"prefix"`
	Merchant  string     `json:"merchant"`
	Scopes    []Scope    `json:"scopes"`
	CreatedAt time.Time  `json:"created_at"` // UTC in database time, as the others
	ExpiresAt *time.Time `json:"expires_at"` // nil: never
	RevokedAt *time.Time `json:"revoked_at"` // nil: not

	hash []byte // identifies the key
}

// Is reports whether this is the whole key, in constant time.
func (k Key) Is(key string) bool { return subtle.ConstantTimeCompare(k.hash, hashOf(key)) == 1 }

const selectKeys = `
-- merchants.selectKeys
select prefix,
       merchant_id,
       scopes,
       created_at at time zone 'UTC' as created_at,
       expires_at at time zone 'UTC' as expires_at,
       revoked_at at time zone 'UTC' as revoked_at,
       key_hash
  from api_keys
 where $1 in ('', merchant_id)
   and ($2::text is null or prefix = $2 or key_hash = $3)
 order by created_at, key_hash`

// ListKeys returns the keys of a merchant, or of all if it is "", the oldest first.
func ListKeys(ctx context.Context, q postgres.Querier, merchant string) ([]Key, error) {
	return readKeys(ctx, q, merchant, nil, nil)
}

// FindKeys returns the keys of a merchant, or of all if it is "", that a name means, the oldest
// first: a whole key means itself alone, and a prefix every key that has it.
func FindKeys(ctx context.Context, q postgres.Querier, merchant, name string) ([]Key, error) {
	prefix := storable(name)
	keys, err := readKeys(ctx, q, merchant, &prefix, hashOf(name))
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.Is(name) }); i >= 0 {
		return keys[i : i+1], nil
	}
	return keys, err
}

func readKeys(ctx context.Context, q postgres.Querier, merchant string, prefix *string, hash []byte) ([]Key, error) {
	rows, _ := q.Query(ctx, selectKeys, merchant, prefix, hash) // rows have its error too
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Key, err error) {
		return k, row.Scan(&k.Prefix, &k.Merchant, &k.Scopes, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.hash)
	})
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	return keys, nil
}

const revokeKey = `
-- merchants.revokeKey
update api_keys
   set revoked_at = clock_timestamp()
 where key_hash = $1
   and revoked_at is null`

const expireKey = `
-- merchants.expireKey
update api_keys
   set expires_at = least(expires_at, clock_timestamp() + $2::interval)
 where key_hash = $1
   and revoked_at is null`

// RevokeKey queues the end of a key that ListKeys or FindKeys returned: at once, or after a time
// above zero. Once it is committed, or has passed, every new request with the key is refused. A
// second revocation changes nothing, and an end that is nearer stays.
func RevokeKey(b *pgx.Batch, k Key, after time.Duration) {
	if after > 0 {
		b.Queue(expireKey, k.hash, after)
		return
	}
	b.Queue(revokeKey, k.hash)
}

const (
	nameLength   = 8 // tells a key from all others
	prefixLength = len("sk_live_") + nameLength
)

// NewKey makes a key: a random name of 8 characters, which is not secret, and 256 random bits.
func NewKey() string {
	var name [nameLength * 6 / 8]byte
	var secret [32]byte
	_, _ = rand.Read(name[:]) // never fails: crypto/rand ends the program instead
	_, _ = rand.Read(secret[:])
	return "sk_live_" + base64.RawURLEncoding.EncodeToString(name[:]) + base64.RawURLEncoding.EncodeToString(secret[:])
}

// Prefix is the part of a key by which operators name it and requests find it. It is not
// secret, and never more than half of a key.
func Prefix(key string) string { return storable(key[:min(len(key)/2, prefixLength)]) }

// storable is the part of a text that PostgreSQL can store.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}

// ErrUnauthorized is returned by NewAuthenticate's reader for every key that is not valid: malformed,
// unknown, expired or revoked.
var ErrUnauthorized = errors.New("the API key is not valid")

// selectByKeys reads the merchants of keys. The index is asked for the part of a key that is
// not secret. The function of schema.sql decides on expiry and revocation, in database time;
// the api sees nothing else of the keys. The digests that are compared are salted for this one
// time, so the time of the comparison tells nothing of a hash.
const selectByKeys = `
-- merchants.selectByKeys
select merchant_id, fee_basis_points, fee_fixed, one_charge_per_order, has_webhook, scopes,
       sha256(key_hash || $3) as salted
  from api_keys_by_prefix($1)
 where sha256(key_hash || $3) = any ($2)`

// NewAuthenticate returns what reads the merchant of an API key, with the scopes of the key;
// ErrUnauthorized if it is not valid. The time that it takes depends on the prefix of the key alone.
// Calls at the same moment share a round trip (postgres.Reads), of which so many are in flight at
// most. Nothing is cached.
func NewAuthenticate(q postgres.Querier, most int) func(ctx context.Context, key string) (Merchant, error) {
	reads := postgres.NewReads(most, func(ctx context.Context, keys []string) ([]Merchant, error) {
		return merchantsOf(ctx, q, keys)
	})
	return func(ctx context.Context, key string) (Merchant, error) {
		m, err := reads.Lookup(ctx, key)
		if err == nil && m.ID == "" {
			err = ErrUnauthorized
		}
		return m, err
	}
}

// merchantsOf are the merchants of keys, in their order; without an ID where a key is not valid.
func merchantsOf(ctx context.Context, q postgres.Querier, keys []string) ([]Merchant, error) {
	var prefixes []string
	var digests [][]byte
	salt, askedBy := []byte(rand.Text()), map[[sha256.Size]byte][]int{}
	for i, key := range keys {
		salted := sha256.Sum256(append(hashOf(key), salt...))
		if askedBy[salted] == nil { // a key that several callers have is read once
			prefixes, digests = append(prefixes, Prefix(key)), append(digests, salted[:])
		}
		askedBy[salted] = append(askedBy[salted], i)
	}
	slices.Sort(prefixes)                                                          // a prefix is asked for once
	rows, _ := q.Query(ctx, selectByKeys, slices.Compact(prefixes), digests, salt) // rows have its error too
	all := make([]Merchant, len(keys))
	var m Merchant
	var digest []byte
	_, err := pgx.ForEachRow(rows, []any{&m.ID, &m.FeeBasisPoints, &m.FeeFixed, &m.OneChargePerOrder, &m.HasWebhook, &m.Scopes, &digest}, func() error {
		for _, i := range askedBy[[sha256.Size]byte(digest)] {
			all[i] = m
		}
		m = Merchant{} // the next row has maps and slices of its own
		return nil
	})
	if err != nil {
		err = fmt.Errorf("authenticate: %w", err)
	}
	return all, err
}

func hashOf(secret string) []byte {
	hash := sha256.Sum256([]byte(secret))
	return hash[:]
}
