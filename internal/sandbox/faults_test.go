package sandbox_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
)

func TestFaults(t *testing.T) {
	t.Parallel()

	for fault, want := range map[string]struct {
		captures int
		replayed string
	}{"drop_before": {0, ""}, "drop_after": {1, "true"}} {
		t.Run(fault+" cuts the connection on its side of the commit", func(t *testing.T) {
			t.Parallel()
			f := start(t, sandbox.Options{})
			id := f.create("pm_card_visa")
			f.faults(`{"seed":1,"` + fault + `":1}`)
			for range 2 {
				if a, err := f.tryPost(confirmation(id), "k"); err == nil {
					t.Errorf("answered %d %s", a.status, a.raw)
				}
			}
			f.faults(`{}`)
			if b := f.books(); len(b.Captures) != want.captures || b.DuplicatesSuppressed != int64(want.captures) || b.Requests != 3 {
				t.Errorf("books %+v", b)
			}
			a := f.post(confirmation(id), "k")
			if a.text("status") != "succeeded" || a.header.Get("Idempotent-Replayed") != want.replayed {
				t.Errorf("afterwards: %d %v", a.status, a.header)
			}
		})
	}

	t.Run("error_500 is saved, half before the effect and half after it", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		f.faults(`{"seed":7,"error_500":1}`)
		const tries = 60
		pay := func(f *fixture, key string) answered {
			return f.post(intents, key, eur("700", "payment_method", "pm_card_visa", "confirm", "true")...)
		}
		for i := range tries {
			key := fmt.Sprint("k", i)
			first := pay(f, key)
			first.want(t, http.StatusInternalServerError, members{"error.type": "api_error"})
			if second := pay(f, key); !replayed(first, second) {
				t.Fatalf("a saved 500 was answered %d %s", second.status, second.raw)
			}
		}
		f.get(intents).want(t, http.StatusInternalServerError, members{"error.type": "api_error"})
		f.post(intents, "invalid", "amount", "0").want(t, http.StatusBadRequest, nil)
		f.faults(`{}`)
		if n := len(f.books().Captures); n < tries/4 || n > 3*tries/4 {
			t.Errorf("%d of %d took effect", n, tries)
		}
		pay(f, "k0").want(t, http.StatusInternalServerError, nil)
	})

	t.Run("slow delays, and a client that leaves changes nothing", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		id := f.create("pm_card_visa")
		const delay = 300 * time.Millisecond
		f.faults(`{"slow":{"p":1,"ms":300}}`)
		before := f.books().Requests
		await.True(t, "the sandbox has the request", func() bool {
			f.client.Timeout = 50 * time.Millisecond
			began := time.Now()
			a, err := f.tryPost(confirmation(id), "k")
			if took := time.Since(began); err == nil && took < delay {
				t.Errorf("answered %d after %v, want a delay of %v: %s", a.status, took, delay, a.raw)
			}
			f.client.Timeout = await.Stall
			return f.books().Requests > before
		})
		await.True(t, "the request is carried out", func() bool { return len(f.books().Captures) == 1 })
	})

	t.Run("the shop meets the same faults", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{ShopSecret: shopSecret})
		for _, test := range []struct {
			plan            string
			status, effects int // no status: the connection is cut
		}{{`{"drop_before":1}`, 0, 0}, {`{"shop_down":true}`, http.StatusServiceUnavailable, 0}, {`{"drop_after":1}`, 0, 1}} {
			f.faults(test.plan)
			a, err := f.notify("msg_1", notice("ch_1"))
			if b := f.books().Notifications; (err == nil) != (test.status != 0) || a.status != test.status || len(b) != test.effects {
				t.Errorf("%s: %d, %v, books %+v", test.plan, a.status, err, b)
			}
		}
		f.faults(`{"shop_down":true}`)
		f.create("pm_card_visa") // the provider is up
		f.faults(`{"seed":3,"error_500":1}`)
		for i := range 40 {
			if a := f.must(f.notify(fmt.Sprint("msg_500_", i), notice("ch_1"))); a.status != http.StatusInternalServerError {
				t.Errorf("error_500: %d", a.status)
			}
		}
		if n := len(f.books().Notifications) - 1; n < 8 || n > 32 {
			t.Errorf("%d of 40 took effect", n)
		}
	})

	t.Run("control calls meet none", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		f.faults(`{"drop_before":1,"drop_after":1,"error_500":1,"slow":{"p":1,"ms":60000},"shop_down":true}`)
		for _, path := range []string{"/books", "/healthz", "/readyz"} {
			f.control(http.MethodGet, path, "").want(t, http.StatusOK, nil)
		}
		f.control(http.MethodPost, "/duplicate-webhooks", `{"times":1}`).want(t, http.StatusOK, nil)
	})
}

func TestFaults_areDeterminedByTheirSeed(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	f := start(t, sandbox.Options{})
	met := func(plan string) []string {
		f.faults(plan)
		var outcomes []string
		for range 60 {
			a, err := f.do(http.MethodGet, "/v1/refunds", "", http.Header{"Authorization": {"Bearer sk_test_1"}})
			if err != nil {
				a.status = 0
			}
			outcomes = append(outcomes, strconv.Itoa(a.status))
		}
		return outcomes
	}
	const seed1 = `{"seed":1,"drop_before":0.2,"error_500":0.3}`
	first := met(seed1)
	if diff := cmp.Diff(first, met(seed1)); diff != "" {
		t.Errorf("the same seed met other faults:\n%s", diff)
	}
	if cmp.Equal(first, met(`{"seed":2,"drop_before":0.2,"error_500":0.3}`)) {
		t.Error("another seed met the same faults")
	}
	without := met(`{"seed":1,"error_500":0.3}`)
	seen := map[string]bool{}
	for i := range first {
		seen[first[i]] = true
		if first[i] != "0" && first[i] != without[i] {
			t.Errorf("request %d met %s, without drop_before %s", i, first[i], without[i])
		}
	}
	if len(seen) != 3 {
		t.Errorf("met only %v", seen)
	}
}

func TestFaults_refusesAnInvalidPlan(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{ShopSecret: shopSecret})
	for _, body := range []string{
		``, ` `, `[]`, `{`, `{}{}`, `{"drop":1}`, `{"DROP_BEFORE":1}`, `{"drop_before":1,"drop_before":0}`,
		`{"drop_before":1.1}`, `{"drop_after":-0.1}`, `{"error_500":"1"}`, `{"slow":1}`, `{"slow":{"p":2,"ms":1}}`,
		`{"slow":{"p":1,"ms":-1}}`, `{"slow":{"p":1,"ms":60001}}`, `{"slow":{"p":1,"s":1}}`, `{"seed":1.5}`,
		`{"shop_down":1}`, `{"forget_keys_after":"1 day"}`, `{"forget_keys_after":"-1h"}`, `{"forget_keys_after":24}`,
	} {
		if a := f.control(http.MethodPut, "/faults", body); a.status != http.StatusBadRequest || a.text("error.message") == "" {
			t.Errorf("%s: answered %d %s", body, a.status, a.raw)
		}
	}
	f.faults(`{"seed":42,"drop_before":0.1,"drop_after":0,"error_500":0,"slow":{"p":0,"ms":10},"shop_down":true,"forget_keys_after":"24h"}`)
	f.control(http.MethodDelete, "/faults", "").want(t, http.StatusOK, nil)
	if a := f.must(f.notify("msg_1", notice("ch_1"))); a.status != http.StatusOK {
		t.Errorf("a deleted plan is in force: %d", a.status)
	}
}
