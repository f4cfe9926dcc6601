package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/client"
	"github.com/payonce/payonce/client/api"
)

const (
	charge    = `{"id":"ch_1","order_id":"17","amount":1000,"amount_refunded":0,"currency":"USD","status":"pending","steps":[],"failure":null,"metadata":{},"created_at":"2026-11-21T07:56:04Z"}`
	refusal   = `{"type":"/problems/%s","title":"Refused","status":%d,"detail":"for a reason","instance":"/","retryable":%t,"retry_with":%q}`
	operation = "pay order 17"
)

// answer is what a service answers once.
type answer struct {
	status int // 0 cuts the connection off
	body   string
	header http.Header
}

func problem(kind string, status int, retryable bool, with string) answer {
	return answer{status, fmt.Sprintf(refusal, kind, status, retryable, with), nil}
}

// service answers in turn and notes what it received.
type service struct {
	*httptest.Server
	mu       sync.Mutex
	answers  []answer
	received []string // key and body
	at       []time.Time
	first    chan struct{} // closed by the first request
}

func serve(t *testing.T, answers ...answer) *service {
	t.Helper()
	s := &service{answers: answers, first: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.received = append(s.received, r.Header.Get("Idempotency-Key")+" "+string(body))
		if s.at = append(s.at, time.Now()); len(s.at) == 1 {
			close(s.first)
		}
		next := s.answers[0]
		if len(s.answers) > 1 {
			s.answers = s.answers[1:]
		}
		if next.status == 0 {
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), next.header)
		w.WriteHeader(next.status)
		_, _ = io.WriteString(w, next.body)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) client(t *testing.T, folder string) *client.Client {
	t.Helper()
	requests, err := client.OpenFolder(folder)
	must(t, err)
	c, err := client.New(s.URL, "key\n", requests) // as a file has it
	must(t, err)
	return c
}

var order = api.ChargeRequest{OrderId: "17", Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa"}

// TestCharge_isSentAgainUntilItIsAnswered, by payonce: neither a redirect nor the page of a proxy is a refusal, so
// the outcome is unknown.
func TestCharge_isSentAgainUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	busy := problem("unavailable", 503, true, "same-key")
	busy.header = http.Header{"Retry-After": {"1"}}
	for name, test := range map[string]struct {
		first answer
		sends int
	}{
		"no answer":                 {answer{}, 3},
		"no sooner than it says":    {busy, 3},
		"unavailable":               {problem("unavailable", 503, true, "same-key"), 3},
		"a proxy's error":           {answer{502, "<html>", nil}, 3},
		"too many requests":         {problem("rate-limited", 429, true, "same-key"), 3},
		"key in use":                {problem("idempotency-key-in-use", 409, true, "same-key"), 3},
		"key in use, as 425":        {problem("idempotency-key-in-use", 425, true, "same-key"), 3},
		"key in use, as 202":        {answer{202, "{}\n", nil}, 3},
		"an answer that is cut off": {answer{202, charge[:20], http.Header{"Content-Length": {"500"}}}, 3},
		"not valid":                 {problem("validation", 422, false, "same-key"), 1},
		"order taken":               {problem("order-taken", 409, false, "new-key"), 1},
		"key expired":               {problem("idempotency-key-expired", 410, false, "new-key"), 1},
		"unauthorized":              {problem("unauthorized", 401, false, "same-key"), 1},
		"a redirect":                {answer{301, "", http.Header{"Location": {"/elsewhere"}}}, 1},
		"a proxy's page":            {answer{404, "<html>", nil}, 1},
		"a proxy's page with 200":   {answer{200, "<html>", nil}, 1},
		"a proxy's object":          {answer{404, " {}", nil}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, test.first, test.first, answer{202, charge, nil})
			got, err := s.client(t, t.TempDir()).Charge(t.Context(), operation, order)
			refusal := &client.RefusalError{}
			refused := errors.As(err, &refusal)
			if (err == nil) != (test.sends == 3) || (got.Id == "ch_1") != (err == nil) {
				t.Errorf("the charge is %q, %v", got.Id, err)
			}
			if err != nil && refused != strings.HasPrefix(test.first.body, "{") || refused && (refusal.Status != test.first.status || refusal.RetryWith == "") {
				t.Errorf("the error is %v", err)
			}
			if len(s.received) != test.sends || len(slices.Compact(slices.Clone(s.received))) != 1 {
				t.Errorf("sent %q, want the same request %d times", s.received, test.sends)
			}
			if test.first.header.Get("Retry-After") != "" && s.at[1].Sub(s.at[0]) < time.Second {
				t.Errorf("sent at %v", s.at)
			}
		})
	}
}

// A call to what is no URL would be repeated until its context ends.
func TestNew_refusesWhatIsNoURL(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "pay.example", "pay.example:8080", "ftp://pay.example", "https://", "http://%"} {
		if _, err := client.New(base, "key", nil); err == nil {
			t.Errorf("a client of %q", base)
		}
	}
}

// A program that ends without an answer finds its request when it starts again.
func TestCharge_afterARestart_sendsWhatIsStored(t *testing.T) {
	t.Parallel()
	folder, s := t.TempDir(), serve(t, answer{})
	ctx, cancel := context.WithCancel(t.Context())
	before := s.client(t, folder)
	done := make(chan error, 1)
	go func() {
		_, err := before.Charge(ctx, operation, order)
		done <- err
	}()
	<-s.first
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "http://") {
		t.Errorf("the error is %v, want that of the context, and of the send", err)
	}
	s.mu.Lock()
	s.answers = []answer{{202, charge, nil}}
	s.mu.Unlock()

	after := s.client(t, folder)
	other := order
	other.Amount = 999
	if _, err := after.Charge(t.Context(), operation, other); !errors.Is(err, client.ErrOtherRequest) {
		t.Errorf("another amount: %v, want ErrOtherRequest", err)
	}
	_, err := after.Charge(t.Context(), operation, order)
	must(t, err)
	if len(slices.Compact(slices.Clone(s.received))) != 1 {
		t.Errorf("sent %q, want one request", s.received)
	}
	_, err = after.Charge(t.Context(), operation+", second card", order)
	must(t, err)
	if len(slices.Compact(slices.Clone(s.received))) != 2 {
		t.Errorf("sent %q, want a key of its own for another operation", s.received)
	}
}

// An operation that was given up is no other request any more, and one that has sent its charge can be given up.
func TestAbandon_givesUpTheKeyOfTheOperation(t *testing.T) {
	t.Parallel()
	abandoned := answer{200, `{"abandoned":true,"status_code":410}`, nil}
	s := serve(t, abandoned, answer{202, charge, nil}, abandoned)
	c := s.client(t, t.TempDir())
	given, err := c.Abandon(t.Context(), operation)
	must(t, err)
	_, charged := c.Charge(t.Context(), operation, order)
	_, canceled := c.Cancel(t.Context(), operation, "ch_1")
	if !given.Abandoned || !errors.Is(charged, client.ErrOtherRequest) || !errors.Is(canceled, client.ErrOtherRequest) {
		t.Errorf("%+v; charged after it: %v, canceled: %v, want ErrOtherRequest", given, charged, canceled)
	}
	_, err = c.Charge(t.Context(), "pay order 18", order)
	must(t, err)
	_, err = c.Abandon(t.Context(), "pay order 18")
	must(t, err)
}

// Of goroutines that keep a request for one operation, all get the same one.
func TestFolder_keepsOneRequestForAnOperation(t *testing.T) {
	t.Parallel()
	folder, err := client.OpenFolder(t.TempDir())
	must(t, err)
	kept := make([]client.Request, 50)
	var all sync.WaitGroup
	for i := range kept {
		all.Go(func() {
			var err error
			kept[i], err = folder.Keep(t.Context(), client.Request{Operation: operation, Key: fmt.Sprint("key-", i), Body: []byte("{}")})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, r := range kept {
		if r.Key != kept[0].Key || r.Key == "" {
			t.Errorf("kept %q and %q", kept[0].Key, r.Key)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
