package fulfillment_test

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// TestInventory_isRefusedByTheConstraints: what was read as available was sold a moment later, or never there.
func TestInventory_isRefusedByTheConstraints(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		items []domain.Item
		code  domain.FailureCode
	}{
		"an article out of stock":        {[]domain.Item{{SKU: "tshirt", Quantity: 1}, {SKU: "mug", Quantity: 6}}, domain.OutOfStock},
		"an unknown article":             {[]domain.Item{{SKU: "mug", Quantity: 1}, {SKU: "socks", Quantity: 1}}, domain.UnknownSKU},
		"an article of another merchant": {[]domain.Item{{SKU: "umbrella", Quantity: 1}}, domain.UnknownSKU},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			worker := fulfillment.New(f.db, fulfillment.Services{}, slog.New(slog.DiscardHandler))
			worker.ReadFrom(&stocked{Querier: f.db})
			f.charge = handlerOf(worker, fulfillment.ChargeReceiver)
			f.exec(`insert into merchants (merchant_id) values ('globex')`)
			f.exec(`insert into stock (merchant_id, sku, supplied, available) values ('globex', 'umbrella', 1, 1)`)
			first := order()
			first.Items = test.items
			f.accept("ch_1", first)
			f.deliver("", "done")
			f.expect("charge.requested inventory.rejected charge.failed", "mug 5 0 0, tshirt 10 0 0, umbrella 1 0 0", "charge.failed", "done")
			if got := f.load().Charge.Failure.Code; got != test.code {
				t.Errorf("the charge failed as %s, want %s", got, test.code)
			}
		})
	}
}

// stocked is a database in which the first read of the stock finds plenty of every article.
type stocked struct {
	postgres.Querier

	read bool
}

func (s *stocked) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "s.available") && !s.read {
		s.read = true
		sql = `select asked.*, 1000::bigint from unnest($1::text[], $2::text[]) asked`
	}
	return s.Querier.Query(ctx, sql, args...)
}

// TestSupply_again: an article that exists stays as it is.
func TestSupply_again(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("ch_1", order())
	f.deliver(creates+"confirm/3:cut", "waits")
	f.supply("mug", 50)
	f.supply("socks", 3)
	f.expect(toStarted, "mug 4 1 0, socks 3 0 0, tshirt 8 2 0; open open", "", "pending")
}

// undeclaredWrites reports writes that no commit may share.
type undeclaredWrites struct {
	t        *testing.T
	declared []groupcommit.Statement
}

var writes = regexp.MustCompile(`(?i)\b(insert into|update|delete from)\b`)

func (u *undeclaredWrites) check(sql string) {
	if writes.MatchString(sql) && !slices.ContainsFunc(u.declared, func(s groupcommit.Statement) bool { return s.SQL == sql || s.ManyRows == sql }) {
		u.t.Errorf("a step has a commit of its own: %s is not declared", sql)
	}
}

func (u *undeclaredWrites) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	u.check(data.SQL)
	return ctx
}

func (u *undeclaredWrites) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (u *undeclaredWrites) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		u.check(q.SQL)
	}
	return ctx
}

func (u *undeclaredWrites) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (u *undeclaredWrites) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestInventory_underContention processes many charges at once, in pairs over the same articles, of which one
// names them the other way round. A deadlock would have its loser wait. In group commits, each statement is
// one that may share.
func TestInventory_underContention(t *testing.T) {
	testdb.Long(t, "it races many against each other")
	t.Parallel()
	for name, share := range map[string]bool{"in commits of their own": false, "in group commits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pairs = 50
			f, p := newFixture(t), newProvider(t)
			services := fulfillment.Services{Provider: newClient(t, p.URL)}
			f.charge = f.handler(services, fulfillment.ChargeReceiver)
			f.supply("cap", 70) // less than the charges want
			f.supply("sock", 1000)
			for i := range pairs {
				items := []domain.Item{{SKU: "cap", Quantity: 1}, {SKU: "sock", Quantity: 2}}
				for n := range 2 {
					first := order()
					first.Items, first.Reference = slices.Clone(items), fmt.Sprintf("ref_%d_%d", i, n)
					if i%4 == 1 {
						first.PaymentMethod = "pm_card_chargeDeclined"
					}
					f.accept(fmt.Sprintf("ch_%d_%d", i, n), first)
					slices.Reverse(items)
				}
			}
			if share {
				declared := slices.Concat(ledger.Writes(), outbox.Writes(), fulfillment.Writes(), inbox.Writes())
				db := testdb.OpenAt(t, f.db.Pool().Config().ConnString(), postgres.Options{
					Role: postgres.RoleWorker, Writes: groupcommit.NewStatements(declared...),
					Tracer: &undeclaredWrites{t: t, declared: declared},
				})
				f.charge = handlerOf(fulfillment.New(db, services, slog.New(slog.DiscardHandler)), fulfillment.ChargeReceiver)
				defer func() {
					if db.Committer().Stats().Batches == 0 {
						t.Error("no commit was shared")
					}
				}()
			}
			for _, err := range f.deliverAll(fulfillment.ChargeReceiver, f.charge, 2*pairs) {
				if err != nil {
					t.Errorf("a handler returned %v", err)
				}
			}
			f.expectText("cap 0 0, sock 0 0", `
select string_agg(format('%s %s %s', sku, reserved, sold - n * case sku when 'cap' then 1 else 2 end), ', ' order by sku)
  from stock,
       (select count(*) as n from ledger_events where type = 'payment.captured.v1') captures
 where sku in ('cap', 'sock')`)
			f.expectText("100 100", `
select format('%s %s', (select count(*) from ledger_events where type in ('charge.succeeded.v1', 'charge.failed.v1')),
                       (select count(*) from inbox where status = 'done'))`)
			f.expectText(strconv.Itoa(len(p.records(t).Captures)), `select count(*)::text from ledger_events where type = 'payment.captured.v1'`)
		})
	}
}
