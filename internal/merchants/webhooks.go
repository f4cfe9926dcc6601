package merchants

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Endpoint is the address of a delivery that begins now, and what signs it.
type Endpoint struct {
	URL     string
	Secrets []string // Standard Webhooks, whsec_…; all that are valid, the newest first
}

// selectEndpoints reads URLs and secrets. A secret that was replaced signs beside the newer
// ones until its end. The offset keeps the subquery a probe for each merchant that is asked
// for.
const selectEndpoints = `
-- merchants.selectEndpoints
select asked.n,
       m.webhook_url,
       array(
         select s.secret
           from webhook_secrets s
          where s.merchant_id = m.merchant_id
            and s.secret is not null
            and (s.ends_at is null or s.ends_at > clock_timestamp())
          order by s.generation desc) as secrets
  from unnest($1::text[]) with ordinality as asked(merchant_id, n)
 cross join lateral (
       select merchant_id, webhook_url
         from merchants
        where merchant_id = asked.merchant_id
          and webhook_url is not null
       offset 0) m`

// ErrNoWebhook is returned for a merchant without an endpoint.
var ErrNoWebhook = errors.New("the merchant has no webhook endpoint")

// NewEndpoints returns a reader of merchants' endpoints, in database time; ErrNoWebhook where there
// is none. Calls at the same moment share a round trip (postgres.Reads), of which so many are in
// flight at most. Nothing is cached.
func NewEndpoints(q postgres.Querier, most int) func(ctx context.Context, merchant string) (Endpoint, error) {
	reads := postgres.NewReads(most, func(ctx context.Context, merchants []string) ([]Endpoint, error) {
		rows, _ := q.Query(ctx, selectEndpoints, merchants) // rows have its error too
		all := make([]Endpoint, len(merchants))
		var n int
		var e Endpoint
		_, err := pgx.ForEachRow(rows, []any{&n, &e.URL, &e.Secrets}, func() error { all[n-1] = e; return nil })
		return all, err
	})
	return func(ctx context.Context, merchant string) (Endpoint, error) {
		endpoint, err := reads.Lookup(ctx, merchant)
		switch {
		case err != nil:
			return Endpoint{}, fmt.Errorf("read the webhook of %s: %w", merchant, err)
		case endpoint.URL == "":
			return Endpoint{}, ErrNoWebhook
		}
		return endpoint, nil
	}
}

// Secret is a webhook secret as its operators see it, without what it signs with.
type Secret struct {
	Merchant    string     `json:"merchant"`
	Fingerprint string     `json:"fingerprint"` // tells secrets apart and leads to none
	CreatedAt   time.Time  `json:"created_at"`  // UTC in database time, as the other
	CreatedBy   string     `json:"created_by"`
	EndsAt      *time.Time `json:"ends_at"` // nil: the newest
	Valid       bool       `json:"valid"`   // signs a delivery that begins now
	Generation  int        `json:"generation"`
	Hash        []byte     `json:"-"`
}

// Is reports whether this is the secret, in constant time.
func (s Secret) Is(secret string) bool {
	return subtle.ConstantTimeCompare(s.Hash, hashOf(secret)) == 1
}

const selectSecrets = `
-- merchants.selectSecrets
select merchant_id                                    as merchant,
       generation,
       secret_hash                                    as hash,
       encode(substr(secret_hash, 1, 6), 'hex')       as fingerprint,
       created_at at time zone 'UTC'                  as created_at,
       created_by,
       ends_at at time zone 'UTC'                     as ends_at,
       ends_at is null or ends_at > clock_timestamp() as valid
  from webhook_secrets
 where merchant_id = $1
 order by generation desc`

// ListSecrets returns the webhook secrets of a merchant, those past their end too, the newest
// first.
func ListSecrets(ctx context.Context, q postgres.Querier, merchant string) ([]Secret, error) {
	rows, _ := q.Query(ctx, selectSecrets, merchant) // rows have its error too
	secrets, err := pgx.CollectRows(rows, pgx.RowToStructByName[Secret])
	if err != nil {
		return nil, fmt.Errorf("list webhook secrets: %w", err)
	}
	return secrets, nil
}

// endSecrets sets when the secrets before a new one end, and deletes those that have ended: they sign
// nothing. An end that is nearer stays. A clock that was set back ends no secret before its beginning.
const endSecrets = `
-- merchants.endSecrets
update webhook_secrets
   set ends_at = least(ends_at, greatest(created_at, clock + $3::interval)),
       secret  = case when least(ends_at, greatest(created_at, clock + $3::interval)) > clock then secret end
  from clock_timestamp() as clock
 where merchant_id = $1
   and generation <= $2`

const insertSecret = `
-- merchants.insertSecret
insert into webhook_secrets
       (merchant_id, generation, secret, secret_hash, created_by)
values ($1, $2, $3, $4, $5)`

// RotateSecret queues a new webhook secret of a merchant in place of the newest, which
// ListSecrets returned. From the commit on deliveries are signed by both, until overlap has
// passed by the database's clock. Earlier secrets end as they would, but no later than that. Of secrets
// that have ended only the hashes stay.
//
// actor is the operator. If the newest has been replaced meanwhile the batch is refused by
// webhook_secrets_pkey, and nothing changes.
func RotateSecret(b *pgx.Batch, newest Secret, secret string, overlap time.Duration, actor string) {
	b.Queue(endSecrets, newest.Merchant, newest.Generation, overlap)
	b.Queue(insertSecret, newest.Merchant, newest.Generation+1, secret, hashOf(secret), actor)
}

// NewWebhookSecret makes a webhook secret of 256 random bits.
func NewWebhookSecret() string {
	var secret [32]byte         // within the 24 to 64 of Standard Webhooks
	_, _ = rand.Read(secret[:]) // never fails: crypto/rand ends the program instead
	return "whsec_" + base64.StdEncoding.EncodeToString(secret[:])
}
