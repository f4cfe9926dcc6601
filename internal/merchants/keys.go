package merchants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// A key that exists stays with the merchant that has it, and as it is: a revoked
// one is not revived. Who adds a key of somebody's choice looks by Authenticate
// what it opens. The clock is read once, so a life that PostgreSQL rounds to
// nothing is none, however long the statement takes.
const insertKey = `
insert into api_keys
       (key_hash, prefix, merchant_id, scopes, created_at, expires_at)
select $1, $2, $3, $4, birth, birth + $5::interval
  from clock_timestamp() as birth
on conflict (key_hash) do nothing`

// IssueKey queues an API key of a merchant that ends after life, or never where
// life is zero. A life that is over at once, and so one of less than a
// microsecond, is refused with the batch, by api_keys_expire_after_their_birth;
// no scope, or an unknown one, by api_keys_known_scopes; an unknown merchant by
// api_keys_merchant_id_fkey.
func IssueKey(b *pgx.Batch, merchant, key string, scopes []Scope, life time.Duration) {
	hash := sha256.Sum256([]byte(key))
	var ends *time.Duration
	if life != 0 {
		ends = &life
	}
	b.Queue(insertKey, hash[:], Prefix(key), merchant, scopes, ends)
}

// AddKey queues an API key of a merchant, with every scope and without end.
func AddKey(b *pgx.Batch, merchant, key string) { IssueKey(b, merchant, key, Scopes(), 0) }

// Key is an API key as its operators see it. The key itself is nowhere.
type Key struct {
	Prefix    string     `json:"prefix"`
	Merchant  string     `json:"merchant"`
	Scopes    []Scope    `json:"scopes"`
	CreatedAt time.Time  `json:"created_at"` // UTC in database time, as the others
	ExpiresAt *time.Time `json:"expires_at"` // nil: never
	RevokedAt *time.Time `json:"revoked_at"` // nil: not

	hash []byte // by which Revoke means this key and no other
}

const selectKeys = `
select prefix,
       merchant_id,
       scopes,
       created_at,
       expires_at,
       revoked_at,
       key_hash
  from api_keys
 where $1 in ('', merchant_id)
 order by created_at, key_hash`

// ListKeys returns the keys of a merchant, or of all where it is "", the oldest
// first.
func ListKeys(ctx context.Context, q postgres.Querier, merchant string) ([]Key, error) {
	return readKeys(ctx, q, selectKeys, merchant)
}

// What all keys begin with names none of them; so does a name that is shorter.
const selectNamed = `
select prefix,
       merchant_id,
       scopes,
       created_at,
       expires_at,
       revoked_at,
       key_hash
  from api_keys
 where $1 in ('', merchant_id)
   and (starts_with($2, prefix) or starts_with(prefix, $2) and length($2) > length('sk_live_'))
 order by created_at, key_hash`

// FindKeys returns the keys of a merchant, or of all where it is "", that a name
// may mean, the oldest first. A name is a whole key, which means itself alone,
// or else a prefix as ListKeys has it, or else more of a key, or so much less of
// its prefix that it still says more than sk_live_.
func FindKeys(ctx context.Context, q postgres.Querier, merchant, name string) ([]Key, error) {
	keys, err := readKeys(ctx, q, selectNamed, merchant, storable(name))
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256([]byte(name))
	for _, means := range []func(Key) bool{
		func(k Key) bool { return subtle.ConstantTimeCompare(k.hash, hash[:]) == 1 },
		func(k Key) bool { return k.Prefix == name },
	} {
		if meant := slices.DeleteFunc(slices.Clone(keys), func(k Key) bool { return !means(k) }); len(meant) > 0 {
			return meant, nil
		}
	}
	return keys, nil
}

func readKeys(ctx context.Context, q postgres.Querier, sql string, args ...any) ([]Key, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Key, err error) {
		err = row.Scan(&k.Prefix, &k.Merchant, &k.Scopes, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.hash)
		k.CreatedAt = k.CreatedAt.UTC()
		for _, at := range []*time.Time{k.ExpiresAt, k.RevokedAt} {
			if at != nil {
				*at = at.UTC()
			}
		}
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("read API keys: %w", err)
	}
	return keys, nil
}

const revokeKey = `
update api_keys
   set revoked_at = clock_timestamp()
 where key_hash = $1
   and revoked_at is null`

// RevokeKey queues the end of a key that ListKeys or FindKeys returned. Once it
// is committed no request that begins is let in by the key. One that is revoked
// stays so since its first time.
func RevokeKey(b *pgx.Batch, k Key) { b.Queue(revokeKey, k.hash) }

const (
	// prefixLength shows enough of a made key to tell it from all others, and
	// leaves 256 bits of it unseen.
	prefixLength = len("sk_live_") + nameLength
	nameLength   = 8
	// shortPrefixLength is that of the keys from before they had scopes.
	shortPrefixLength = 12
)

// NewKey makes a key: a random name of 8 characters, which is no secret, and 256
// random bits.
func NewKey() string {
	var name [nameLength * 6 / 8]byte
	var secret [32]byte
	_, _ = rand.Read(name[:]) // never fails: crypto/rand ends the program instead
	_, _ = rand.Read(secret[:])
	return "sk_live_" + base64.RawURLEncoding.EncodeToString(name[:]) + base64.RawURLEncoding.EncodeToString(secret[:])
}

// Prefix is the part of a key by which people name it, and requests find it. It
// is no secret, and never more than half of a key.
func Prefix(key string) string { return beginning(key, prefixLength) }

// prefixes are those that a key may be kept under, each once.
func prefixes(key string) []string {
	return slices.Compact([]string{beginning(key, prefixLength), beginning(key, shortPrefixLength)})
}

func beginning(key string, length int) string { return storable(key[:min(len(key)/2, length)]) }

// storable is what of a text from outside PostgreSQL can hold.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}
