package fulfillment

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// Reader is what the handlers of a worker read. What several of them ask for at the
// same moment is read in one round trip (postgres.Reads); nothing is remembered.
type Reader struct {
	streams   *ledger.Loader
	endpoints *merchants.Endpoints
	stock     *postgres.Reads[[]article, []int64]
}

// roundTrips bounds how many of one kind are under way at a time, so that reads which
// stand still leave connections to the commits.
const roundTrips = 4

// NewReader makes one, for all handlers of a process.
func NewReader(q postgres.Querier) *Reader {
	return &Reader{
		streams:   ledger.NewLoader(q, roundTrips),
		endpoints: merchants.NewEndpoints(q, roundTrips),
		stock: postgres.NewReads(roundTrips, func(ctx context.Context, asked [][]article) ([][]int64, error) {
			return readStock(ctx, q, asked)
		}),
	}
}

// readTimeout bounds one read: a connection that never answers must not keep a
// message for ever. It is longer than the server's own statement_timeout.
const readTimeout = 15 * time.Second

func (r *Reader) load(ctx context.Context, charge string) (ledger.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s, err := r.streams.Load(ctx, charge)
	if errors.Is(err, domain.ErrUnknownType) {
		// A newer program wrote it, so a newer worker is on its way.
		return s, &inbox.WaitError{Err: err}
	}
	return s, err
}

func (r *Reader) endpoint(ctx context.Context, merchant string) (merchants.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return r.endpoints.Read(ctx, merchant)
}

// article is what a merchant sells.
type article struct{ merchant, sku string }

// available is how many of each article can be reserved, -1 of one that is not known.
func (r *Reader) available(ctx context.Context, asked []article) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return r.stock.Ask(ctx, asked)
}

// The offset keeps the subquery a probe for each article.
const selectAvailable = `
select asked.n,
       s.available
  from unnest($1::text[], $2::text[]) with ordinality as asked(merchant_id, sku, n)
 cross join lateral (
       select available
         from stock
        where merchant_id = asked.merchant_id
          and sku = asked.sku
       offset 0) s`

func readStock(ctx context.Context, q postgres.Querier, asked [][]article) ([][]int64, error) {
	all := slices.Concat(asked...)
	owners, skus, available := make([]string, len(all)), make([]string, len(all)), make([]int64, len(all))
	for i, a := range all {
		owners[i], skus[i], available[i] = a.merchant, a.sku, -1
	}
	rows, err := q.Query(ctx, selectAvailable, owners, skus)
	if err != nil {
		return nil, err
	}
	var n, left int64
	_, err = pgx.ForEachRow(rows, []any{&n, &left}, func() error { available[n-1] = left; return nil })
	answers := make([][]int64, len(asked))
	for i, of := range asked {
		answers[i], available = available[:len(of)], available[len(of):]
	}
	return answers, err
}
