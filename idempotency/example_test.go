package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

// A request that is sent again under its key is answered again and not done
// again.
func Example() {
	db, end := testdb.Example()
	defer end()
	ctx := context.Background()
	receiver := idempotency.Receiver{DB: db, Retention: 24 * time.Hour}

	register := func(header, merchant string) {
		value, err := idempotency.ParseKey([]string{header})
		if err != nil {
			fmt.Println(err)
			return
		}
		key := idempotency.Key{Scope: "acme", Operation: "POST /merchants", Value: value}
		canonical := fmt.Appendf(nil, `{"merchant":%q}`, merchant)
		request := idempotency.Request{
			Fingerprint: idempotency.Fingerprint([]byte("v1"), canonical),
			Canonical:   canonical,
		}
		outcome, err := receiver.Receive(ctx, key, request, func(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
			b.Queue(`insert into merchants (merchant_id) values ($1)`, merchant)
			return idempotency.Answer{StatusCode: http.StatusCreated, ContentType: "text/plain", Body: []byte(merchant + " is registered")}, nil
		})
		if reused, ok := errors.AsType[*idempotency.ReusedError](err); ok {
			fmt.Println(err, reused.Pointers)
			return
		}
		fmt.Println(outcome.StatusCode, string(outcome.Body), outcome.Replayed, err)
	}
	register(`"k1"`, "globex")
	register(`k1`, "globex")
	register(`k1`, "initech")

	var merchants int
	err := db.QueryRow(ctx, `select count(*) from merchants`).Scan(&merchants)
	fmt.Println(merchants, err)
	// Output:
	// 201 globex is registered false <nil>
	// 201 globex is registered true <nil>
	// the key was used for another request [/merchant]
	// 1 <nil>
}

type signup struct {
	Name string `json:"name"`
}

type account struct {
	ID string `json:"id"`
}

// Any function is done once per key: its writes, its result and the key are one
// commit.
func ExampleOnce() {
	db, end := testdb.Example()
	defer end()
	ctx := context.Background()

	signUp := func(s signup) {
		key, request, err := idempotency.ByContent("", "signup.v1", s)
		if err != nil {
			fmt.Println(err)
		}
		key.Value = idempotency.NaturalKey{Parts: []string{s.Name}, Operation: "signup", Version: 1}.String()
		result, duplicate, err := idempotency.Once(ctx, idempotency.Receiver{DB: db}, key, request,
			func(_ context.Context, b *pgx.Batch) (account, error) {
				b.Queue(`insert into merchants (merchant_id) values ($1)`, s.Name)
				return account{ID: s.Name + "-1"}, nil
			})
		fmt.Println(key.Value, result.ID, duplicate, err)
	}
	signUp(signup{Name: "globex"})
	signUp(signup{Name: "globex"})
	// Output:
	// globex:signup:v1 globex-1 false <nil>
	// globex:signup:v1 globex-1 true <nil>
}

// Of many inputs the known ones are skipped, and a bad one fails alone.
func ExampleDoAll() {
	db, end := testdb.Example()
	defer end()
	ctx := context.Background()

	receiver := idempotency.Receiver{DB: db}
	identify := func(s signup) (idempotency.Key, idempotency.Request, error) {
		return idempotency.ByContent("", "signup.v1", s)
	}
	signUp := func(_ context.Context, b *pgx.Batch, s signup) (account, error) {
		if s.Name == "" {
			return account{}, errors.New("a merchant needs a name")
		}
		b.Queue(`insert into merchants (merchant_id) values ($1)`, s.Name)
		return account{ID: s.Name}, nil
	}
	idempotency.DoAll(ctx, receiver, []signup{{"globex"}}, identify, signUp)
	for _, result := range idempotency.DoAll(ctx, receiver, []signup{{"acme"}, {"globex"}, {""}, {"initech"}}, identify, signUp) {
		fmt.Printf("%q %v %v\n", result.Value.ID, result.Duplicate, result.Err)
	}
	// Output:
	// "acme" false <nil>
	// "globex" true <nil>
	// "" false a merchant needs a name
	// "initech" false <nil>
}

// A message is known by its sender's key, else by its own names, else by all that
// it says.
func ExampleFirstOf() {
	extract := idempotency.FirstOf(
		idempotency.FromHeader("Idempotency-Key"),
		idempotency.FromMembers("charge", 1, "order_id"),
		idempotency.FromContent("shop"),
	)
	header := map[string]string{"Idempotency-Key": `"8e03978e"`}
	fmt.Println(extract(header, []byte(`{"order_id":"order-17"}`)))
	fmt.Println(extract(nil, []byte(`{"order_id":"order-17"}`)))
	key, err := extract(nil, []byte(`{"sku":"mug"}`))
	fmt.Println(key[:24], err)
	_, err = extract(map[string]string{"Idempotency-Key": "no key"}, []byte(`{"order_id":"order-17"}`))
	fmt.Println(err)
	// Output:
	// 8e03978e <nil>
	// order-17:charge:v1 <nil>
	// content.v1:5981f05acba2f <nil>
	// the idempotency key is not a key
}

// A duplicate that straddles the boundary of a window has another key. A claim of the
// window before recognises it.
func ExampleWindow() {
	first := time.Date(2026, 1, 31, 10, 59, 59, 0, time.UTC)
	again := first.Add(2 * time.Second)
	this, _ := idempotency.Window(first, time.Hour)
	next, previous := idempotency.Window(again, time.Hour)
	fmt.Println(this == next, this == previous)
	fmt.Println(idempotency.NaturalKey{Parts: []string{"acme", next}, Operation: "report", Version: 1})
	// Output:
	// false true
	// acme:20260131T110000Z-1h0m0s:report:v1
}
