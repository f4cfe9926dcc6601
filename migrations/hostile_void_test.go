package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// store appends events to a new stream as the owner of the tables, to whom no policy and no trigger of
// the api applies.
func (h hostile) store(t *testing.T, charge string, events ...domain.Event) domain.Charge {
	t.Helper()
	return testdb.Appended(t, h.owner, ledger.New(charge), testdb.Cause(charge), events...).Charge
}

// captured are the events of a charge of 1000 that succeeded.
func captured(charge string, more ...domain.Event) []domain.Event {
	return append(testdb.Paid("acme", "pi_"+charge), more...)
}

// asked inserts requests for refunds of these amounts, which begin at a version, in one statement
// that also reads from a table.
func asked(charge string, version int, from string, amounts ...int64) string {
	values := make([]string, len(amounts))
	for i, amount := range amounts {
		values[i] = fmt.Sprintf("(%d, %d::bigint)", version+i, amount)
	}
	return `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select overlay(gen_random_uuid()::text placing '8' from 15)::uuid, '` + charge + `', v.version, 'refund.requested.v1', 'acme',
       jsonb_build_object('refund_id', 're_v' || v.version, 'amount', v.amount), '{"actor":"api"}', now()
  from (values ` + strings.Join(values, ", ") + `) v(version, amount)` + from
}

const asAcme = `set payonce.merchant = 'acme'`

// TestHostileAPI_isRefusedWhatIsVoid: the database refuses to the api the requests that the program
// would void, and no others.
func TestHostileAPI_isRefusedWhatIsVoid(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	back := func(id string, amount int64) domain.Event {
		return domain.RefundRequested{RefundID: id, Amount: amount}
	}
	gone := func(id string, amount int64) domain.Event {
		return domain.RefundSucceeded{RefundID: id, Provider: "stripe", ProviderRefund: fmt.Sprint("rp_", amount), Amount: amount}
	}
	requests := map[string]domain.Event{
		"a cancellation": domain.ChargeCancelRequested{}, "a refund re_1": back("re_1", 1), "a refund re_90": back("re_90", 1),
	}
	for _, amount := range []int64{1, 400, 600, 601, 1000, 1001} {
		requests[fmt.Sprint("a refund of ", amount)] = back("re_9", amount)
	}
	_, rows := inserts(t)
	declined, voids, legal := domain.Failure{Code: domain.CardDeclined}, 0, 0
	for name, history := range map[string][]domain.Event{
		"pending":   captured("")[:1],
		"started":   captured("started")[:2],
		"canceling": append(captured("")[:1], domain.ChargeCancelRequested{}),
		"failed":    append(captured("")[:1], domain.ChargeCancelRequested{}, domain.ChargeFailed{Failure: domain.Failure{Code: domain.Canceled}}),
		"declined":  append(captured("declined")[:2], domain.PaymentDeclined{Failure: declined}, domain.ChargeFailed{Failure: declined}),
		"captured":  captured("captured"),
		"refunding": captured("refunding", back("re_1", 400)),
		"refunded":  captured("refunded", back("re_1", 400), gone("re_1", 400)),
		"refund failed": captured("refund_failed", back("re_1", 400),
			domain.RefundAttemptFailed{RefundID: "re_1"}, domain.RefundFailed{RefundID: "re_1"}),
		"refund reversed": captured("reversed", back("re_1", 300), gone("re_1", 300),
			domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_300", Amount: 300}),
		"refunded elsewhere": captured("observed", domain.RefundObserved{
			RefundID: "re_90", Provider: "stripe", ProviderRefund: "rp_9", Amount: 400,
		}),
		"refunded elsewhere beside a request": captured("twice", back("re_1", 600), domain.RefundObserved{
			RefundID: "re_90", Provider: "stripe", ProviderRefund: "rp_8", Amount: 1000,
		}),
	} {
		charge := "ch " + name
		c := h.store(t, charge, history...)
		for request, e := range requests {
			data, err := json.Marshal(e)
			testdb.Must(t, err)
			want := ""
			if c.Voids(e) {
				want = refused
				voids++
			} else {
				legal++
			}
			r := rows["refund"].but("stream_id", "'"+charge+"'", "version", strconv.Itoa(c.Version+1),
				"type", "'"+domain.TypeOf(e)+"'", "data", "'"+string(data)+"'::jsonb")
			if code := h.try(t, asAcme, r.insert("ledger_events")); code != want {
				t.Errorf("%s, %s: %q, want %q", name, request, code, want)
			}
		}
	}
	if voids == 0 || legal == 0 {
		t.Errorf("%d requests are void, %d legal", voids, legal)
	}
}

// TestHostileAPI_refundsNoMoreThanIsLeft: refunds that exceed a charge only together are refused, in
// one statement, in several, and in concurrent transactions that have not seen each other.
func TestHostileAPI_refundsNoMoreThanIsLeft(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	exec := func(sql string) (code string) {
		_, err := h.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		return testdb.Code(err)
	}
	testdb.Exec(t, h, asAcme)
	wants := func(what, want, code string) {
		t.Helper()
		if code != want {
			t.Errorf("%s: %q, want %q", what, code, want)
		}
	}

	h.store(t, "ch_1", captured("1")...)
	wants("two of 600 in one statement", refused, exec(asked("ch_1", 5, "", 600, 600)))
	wants("two of 600, the later version first", refused, exec(asked("ch_1", 5, " order by version desc", 600, 600)))
	wants("two of 500 in one statement", "", exec(asked("ch_1", 5, "", 500, 500)))
	wants("one more", refused, exec(asked("ch_1", 7, "", 1)))

	h.store(t, "ch_2", captured("2")...)
	wants("two of 600 in one transaction", refused, exec("begin;"+asked("ch_2", 5, "", 600)+";"+asked("ch_2", 6, "", 600)))
	_ = exec("rollback")

	h.store(t, "ch_many", captured("many")...)
	wants("as many as a charge may have", "", exec(asked("ch_many", 5, "", slices.Repeat([]int64{1}, domain.MaxRefunds)...)))
	wants("one more than a charge may have", refused, exec(asked("ch_many", 5+domain.MaxRefunds, "", 1)))

	for i, test := range []struct {
		isolation string
		amount    int64
		want      string
	}{
		{"read committed", 400, ""},
		{"read committed", 401, refused},
		{"repeatable read", 400, "23503"}, // the version before it is not in the snapshot
		{"repeatable read", 401, "23503"},
		{"serializable", 401, "23503"},
	} {
		charge := fmt.Sprint("ch_late_", i)
		h.store(t, charge, captured(charge)...)
		wants(fmt.Sprintf("%d at %s, after 600 that its snapshot does not have", test.amount, test.isolation), test.want,
			h.late(t, charge, test.isolation, test.amount, func() { wants("600", "", exec(asked(charge, 5, "", 600))) }))
	}
}

// late asks for a refund in a statement that takes its snapshot before others are committed by
// meanwhile, and inserts after it.
func (h hostile) late(t *testing.T, charge, isolation string, amount int64, meanwhile func()) (code string) {
	t.Helper()
	holder := testdb.Begin(t, h.owner.Pool(), `select pg_advisory_xact_lock(1)`)
	rival, err := pgx.ConnectConfig(t.Context(), h.Config())
	testdb.Must(t, err)
	defer func() { _ = rival.Close(context.WithoutCancel(t.Context())) }()
	inserted := make(chan error, 1)
	go func() {
		_, err := rival.Exec(t.Context(), "begin isolation level "+isolation+";"+asAcme+";"+
			asked(charge, 6, " cross join pg_advisory_xact_lock(1)", amount)+"; commit", pgx.QueryExecModeSimpleProtocol)
		inserted <- err
	}()
	testrun.Row(t, h.owner, `
select exists (
  select
    from pg_locks
   where locktype = 'advisory'
     and not granted
     and database = (select oid from pg_database where datname = current_database()))`)
	meanwhile()
	testdb.Must(t, holder.Rollback(t.Context()))
	return testdb.Code(testrun.Receive(t, "the statement ends", inserted))
}
