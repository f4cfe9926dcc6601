package ledger_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// copied are copies of the charge ch_1, of which one in a thousand failed.
const copied = `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || lpad(n::text, 8, '0'), version,
       case when n % 1000 = 500 and type = 'charge.succeeded.v1' then 'charge.failed.v1' else type end, 1, merchant_id,
       case when n % 1000 = 500 and type = 'charge.succeeded.v1' then '{"code": "card_declined"}' else
            data || jsonb_strip_nulls(jsonb_build_object('payment_intent', data ->> 'payment_intent' || n)) end, metadata, occurred_at
  from generate_series($first, $last) n,
       ledger_events
 where stream_id = 'ch_1'
 order by n, version`

// BenchmarkReads reads as the api beside 100,000 charges of seven events each.
func BenchmarkReads(b *testing.B) {
	url := testdb.URL(b)
	owner := testdb.OpenAt(b, url, postgres.Options{MaxConns: 1, StatementTimeout: 5 * time.Minute})
	batch := &pgx.Batch{}
	events := append(append(paid("acme", "pi_1")[:2], attempt(500), attempt(502), attempt(503)), paid("acme", "pi_1")[2:]...)
	_, err := ledger.Append(batch, ledger.New("ch_1"), cause("a"), events...)
	testdb.Must(b, err)
	testdb.Must(b, owner.Commit(b.Context(), batch))
	for first := 1; first <= 100_000; first += 5000 {
		testdb.Exec(b, owner.Pool(), strings.NewReplacer("$first", strconv.Itoa(first), "$last", strconv.Itoa(first+4999)).Replace(copied), pgx.QueryExecModeSimpleProtocol)
	}
	testdb.Exec(b, owner.Pool(), `update followers set (txid, position) = (select txid, position from ledger_events order by txid desc, position desc limit 1)`)
	testdb.Exec(b, owner.Pool(), `vacuum (analyze)`, pgx.QueryExecModeSimpleProtocol)
	api := testdb.OpenAt(b, url, postgres.Options{MaxConns: 1, Role: postgres.RoleAPI}).Tenant("acme")
	list := func(limit int, status domain.Status, after string) func() error {
		return func() error {
			_, err := ledger.ListCharges(b.Context(), api, ledger.ListQuery{MerchantID: "acme", Limit: limit, Status: status, StartingAfter: after})
			return err
		}
	}
	for _, read := range []struct {
		name string
		do   func() error
	}{
		{"page of 20", list(20, "", "")},
		{"page of 20, deep", list(20, "", "ch_00050000")},
		{"page of 100", list(100, "", "")},
		{"failed", list(20, domain.Failed, "")},
		{"refunded, none", list(20, domain.Refunded, "")},
		{"pending, none", list(20, domain.Pending, "")},
		{"balances", func() error { _, err := ledger.ReadBalances(b.Context(), api, "acme"); return err }},
	} {
		b.Run(read.name, func(b *testing.B) {
			for b.Loop() {
				testdb.Must(b, read.do())
			}
		})
	}
}
