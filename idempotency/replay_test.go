package idempotency_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// fromNow is a time by the database's clock.
func fromNow(t *testing.T, q postgres.Querier, d time.Duration) time.Time {
	t.Helper()
	var at time.Time
	if err := q.QueryRow(t.Context(), `select clock_timestamp() + $1::interval`, d).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestReplay(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		expires     time.Duration
		fingerprint string
		canonical   string
		want        error
		pointers    []string
	}{
		{"the same request gets the answer", time.Hour, "fingerprint", `{"amount":1}`, nil, nil},
		{"the fingerprint alone decides that", time.Hour, "fingerprint", `{"amount":2}`, nil, nil},
		{"another request is told where it differs", time.Hour, "another", `{"amount":2,"reason":"r"}`, idempotency.ErrReused, []string{"/amount", "/reason"}},
		{"also one that only has a longer fingerprint", time.Hour, "fingerprint ", `{"amount":2}`, idempotency.ErrReused, []string{"/amount"}},
		{"or none", time.Hour, "", `{"amount":2}`, idempotency.ErrReused, []string{"/amount"}},
		{"what differs outside the request has no pointer", time.Hour, "another path", `{"amount":1}`, idempotency.ErrReused, nil},
		{"a request without canonical form is not compared", time.Hour, "another", "", idempotency.ErrReused, nil},
		{"nobody gets an answer that has expired", -time.Second, "fingerprint", `{"amount":1}`, idempotency.ErrExpired, nil},
		{"another request is told apart also then, but not where", -time.Second, "another", `{"amount":2}`, idempotency.ErrReused, nil},
	} {
		for _, swept := range []bool{false, true} {
			name := test.name
			if swept {
				if test.expires > 0 {
					continue
				}
				name += ", swept or not"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := pgtest.Reused(t)
				if err := claim(t, db, theKey(), theAnswer(), fromNow(t, db, test.expires)); err != nil {
					t.Fatal(err)
				}
				if swept {
					wantSwept(t, db, 10, 1)
				}
				record, found := look(t, db, theKey())
				if !found || record.Expired != (test.expires < 0) {
					t.Errorf("found %v, expired %v", found, record.Expired)
				}
				request := idempotency.Request{Fingerprint: []byte(test.fingerprint)}
				if test.canonical != "" {
					request.Canonical = []byte(test.canonical)
				}
				answer, err := record.Replay(request)
				if !errors.Is(err, test.want) {
					t.Errorf("the error is %v, want %v", err, test.want)
				}
				if diff := cmp.Diff(replayed(test.want), answer); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
				if reused, ok := errors.AsType[*idempotency.ReusedError](err); ok {
					if diff := cmp.Diff(test.pointers, reused.Pointers); diff != "" {
						t.Errorf("pointers (-want +got):\n%s", diff)
					}
				}
			})
		}
	}
}

// replayed is what of the answer comes with an error.
func replayed(err error) idempotency.Answer {
	switch {
	case err == nil:
		return theAnswer()
	case errors.Is(err, idempotency.ErrExpired):
		return idempotency.Answer{StatusCode: http.StatusAccepted, Location: theAnswer().Location}
	default:
		return idempotency.Answer{}
	}
}

func TestReusedErrorNamesNothingOfARequest(t *testing.T) {
	t.Parallel()
	err := &idempotency.ReusedError{Pointers: []string{"/metadata/4242424242424242"}}
	if !errors.Is(err, idempotency.ErrReused) || strings.Contains(err.Error(), "4242") {
		t.Errorf("it says %q", err)
	}
}
