package intake_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

func TestRivals(t *testing.T) {
	t.Parallel()

	t.Run("of sixty-four requests under one key one makes the charge, and all get its bytes", func(t *testing.T) {
		t.Parallel()
		const clients = 64 // far more than connections
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 6})
		in := keeping(t, db)
		answers := make([]idempotency.Result, clients)
		rivals(t, clients, func(i int) (answer idempotency.Result, err error) {
			answers[i], err = in.AcceptCharge(t.Context(), acme(), request("k1"), mug())
			return answers[i], err
		})
		first := 0
		for _, a := range answers {
			if !a.Replayed {
				first++
			}
			if diff := cmp.Diff(answers[0].Answer, a.Answer); diff != "" || !a.ExpiresAt.Equal(answers[0].ExpiresAt) {
				t.Errorf("two answers (-one +other):\n%s", diff)
			}
		}
		if first != 1 {
			t.Errorf("%d answers are the first", first)
		}
		wantCharges(t, db, 1)
	})
}

// TestLostAnswers cuts the connection around the commit, so that its result is unknown.
// The key has it.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(in *intake.Intake, charge string) (idempotency.Result, error){
		"a charge": func(in *intake.Intake, _ string) (idempotency.Result, error) {
			return in.AcceptCharge(t.Context(), acme(), request("k1"), mug())
		},
		"a refund": func(in *intake.Intake, charge string) (idempotency.Result, error) {
			return in.RequestRefund(t.Context(), acme(), to("refunds", "k1"), charge, some(400))
		},
	} {
		commit := map[string]int{"a charge": 3, "a refund": 5}[name] // each read before it is a batch of two
		for _, test := range []struct {
			name     string
			side     failpoint.Side
			replayed bool
		}{
			{" whose commit has no known result is found by its key", failpoint.After, true},
			{" whose commit never reached the server is sent again", failpoint.Before, false},
		} {
			t.Run(name+test.name, func(t *testing.T) {
				t.Parallel()
				address := testdb.URL(t)
				direct, proxy := testdb.OpenAt(t, address, postgres.Options{}), failpoint.StartCutter(t, address)
				charge := captured(t, direct, "charge")
				before := tables(t, direct)
				proxy.Arm(test.side, commit)
				got, err := send(keeping(t, testdb.OpenAt(t, proxy.URL(), postgres.Options{})), charge)
				if err != nil || got.Replayed != test.replayed || proxy.Cuts() != 1 {
					t.Errorf("%v: replayed %v after %d cuts", err, got.Replayed, proxy.Cuts())
				}
				again, err := send(keeping(t, direct), charge)
				testdb.Must(t, err)
				testrun.Same(t, "the answer", got.Answer, again.Answer)
				for table, rows := range tables(t, direct) {
					if rows != before[table]+1 {
						t.Errorf("%s grew from %d to %d rows", table, before[table], rows)
					}
				}
			})
		}
	}
}

// TestCommit_repeatsALostRaceABoundedNumberOfTimes makes commits fail as if they had lost a race. Numbers of a sequence are not
// returned by a rollback, so it counts the tries.
func TestCommit_repeatsALostRaceABoundedNumberOfTimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code        string
		lost, tries int
		charges     int
	}{
		{"40001", 3, 4, 1}, {"40P01", 3, 4, 1}, {"57014", 3, 4, 1}, {"57P01", 3, 4, 1}, {"40001", 1000, 4, 0},
	} {
		t.Run(fmt.Sprintf("after %d commits that lost a race by %s there are %d charges", test.lost, test.code, test.charges), func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			testdb.Exec(t, db.Pool(), fmt.Sprintf(`
create sequence storms;
create function storm() returns trigger language plpgsql security definer as $$
begin
  if nextval('storms') <= %d then
    raise 'planted' using errcode = '%s';
  end if;
  return new;
end
$$;
create trigger storm before insert on ledger_events for each row execute function storm()`, test.lost, test.code))
			_, err := keeping(t, db).AcceptCharge(t.Context(), acme(), request("k1"), mug())
			if (err == nil) != (test.charges == 1) || err != nil && !errors.Is(err, idempotency.ErrUnknown) {
				t.Errorf("the error is %v", err)
			}
			if tries := testdb.One[int](t, db, `select last_value from storms`); tries != test.tries {
				t.Errorf("%d tries", tries)
			}
			wantCharges(t, db, test.charges)
		})
	}
}

// TestGroupCommit_ofSeveralRequests: requests of two merchants at once, whose accepts are
// committed together, and then some under keys that come three times. Of each key
// there is one charge, it is its merchant's own, and all have its answer.
func TestGroupCommit_ofSeveralRequests(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	address := testdb.URL(t)
	owner := testdb.OpenAt(t, address, postgres.Options{})
	// As the api's.
	db := testdb.OpenAt(t, address, postgres.Options{Role: postgres.RoleAPI, Writes: groupcommit.NewStatements(slices.Concat(idempotency.Writes(), ledger.Writes(), outbox.Writes())...), LockTimeout: 25 * time.Millisecond})
	in := &intake.Intake{DB: db, Options: idempotency.Options{
		Read: intake.BatchedRead(db, 0), Retention: time.Hour, Wait: 5 * time.Second,
	}}
	const keys, repeated, times = 80, 20, 3
	answers := make([][times]string, keys)
	accept := func(from, to, times int) {
		var work errgroup.Group
		for i := range times {
			for key := from; key < to; key++ {
				work.Go(func() error {
					accepted, err := in.AcceptCharge(t.Context(), merchant(key), request(fmt.Sprint("k", key/2)), mug())
					answers[key][i] = string(accepted.Body)
					return err
				})
			}
		}
		testdb.Must(t, work.Wait())
	}
	accept(0, keys-repeated, 1)
	if db.Committer().Stats().Batches == 0 {
		t.Error("no accept shared a commit")
	}
	accept(keys-repeated, keys, times)
	for key, same := range answers {
		if same[0] == "" || key >= keys-repeated && (same[1] != same[0] || same[2] != same[0]) {
			t.Errorf("key %d has the answers %q", key, same)
		}
	}
	wantCharges(t, owner, keys)
	strays := testdb.One[int](t, owner, `
select count(*)
  from idempotency_keys k
  left join ledger_events e
    on e.merchant_id = k.scope
   and k.headers #>> '{Location,0}' like '%' || e.stream_id
 where e.stream_id is null
    or e.txid::text <> k.xmin::text`)
	if strays != 0 {
		t.Errorf("%d keys without a charge of their merchant and their commit", strays)
	}
}

// merchant is one of two with the same keys.
func merchant(i int) intake.Account {
	a := acme()
	if i%2 == 1 {
		a.MerchantID = "globex"
	}
	return a
}
