package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Owner is a stream and its merchant.
type Owner struct {
	StreamID   string
	MerchantID string
}

const (
	selectByID = `
-- ledger.selectByID
select stream_id,
       merchant_id
  from ledger_events
 where stream_id = $1
   and version = 1`

	// charge_by_payment_intent, in schema.sql, also finds a charge before its merchant is known.
	selectByPaymentIntent = `
-- ledger.selectByPaymentIntent
select stream_id,
       merchant_id
  from charge_by_payment_intent($1, $2)`
)

// Find returns the owner of a stream. ErrNotFound if the stream has no event.
func Find(ctx context.Context, q postgres.Querier, id string) (Owner, error) {
	return find(ctx, q, "charge "+id, selectByID, id)
}

// FindByPaymentIntent returns the owner of the charge whose payment was started under a
// payment intent, also before its capture. ErrNotFound if no charge has it.
func FindByPaymentIntent(ctx context.Context, q postgres.Querier, provider, intent string) (Owner, error) {
	return find(ctx, q, "the charge of a payment intent", selectByPaymentIntent, provider, intent)
}

const selectHolder = `
-- ledger.selectHolder
select stream_id,
       merchant_id
  from held_orders
 where merchant_id = $1
   and order_id = $2`

// LoadHolder reads the charge that holds an order. ErrNotFound if none does; the answer may be
// old by the time of a commit, which held_orders_one_charge decides.
func LoadHolder(ctx context.Context, q postgres.Querier, merchant, order string) (Stream, error) {
	holder, err := find(ctx, q, "the charge that holds an order", selectHolder, merchant, order)
	if err != nil {
		return Stream{}, err
	}
	return Load(ctx, q, holder.StreamID)
}

func find(ctx context.Context, q postgres.Querier, what, sql string, args ...any) (Owner, error) {
	owners, err := collect[Owner](q.Query(ctx, sql, args...))
	switch {
	case err != nil:
		return Owner{}, fmt.Errorf("find %s: %w", what, err)
	case len(owners) == 0:
		return Owner{}, fmt.Errorf("find %s: %w", what, ErrNotFound)
	}
	return owners[0], nil
}

// selectVersions counts, since a stream has no gap.
const selectVersions = `
-- ledger.selectVersions
select stream_id,
       merchant_id,
       count(*)
  from ledger_events
 where stream_id = any($1)
 group by stream_id, merchant_id`

// NewVersions makes a reader of the versions of streams, 0 for one that is not the merchant's.
// Streams that are asked for at the same moment share a round trip, one at a time, and those of a
// merchant a statement.
func NewVersions(db interface {
	Read(ctx context.Context, b *pgx.Batch) error
},
) *postgres.Reads[Owner, int] {
	return postgres.NewReads(1, func(ctx context.Context, streams []Owner) ([]int, error) {
		ids, found := map[string][]string{}, map[Owner]int{}
		for _, s := range streams {
			ids[s.MerchantID] = append(ids[s.MerchantID], s.StreamID)
		}
		b, versions := &pgx.Batch{}, make([]int, len(streams))
		for merchant := range ids {
			postgres.QueueTenant(b, merchant)
			b.Queue(selectVersions, ids[merchant]).Query(func(rows pgx.Rows) error {
				var s Owner
				var version int
				_, err := pgx.ForEachRow(rows, []any{&s.StreamID, &s.MerchantID, &version}, func() error { found[s] = version; return nil })
				return err
			})
		}
		err := db.Read(ctx, b)
		for i, s := range streams {
			versions[i] = found[s]
		}
		return versions, err
	})
}
