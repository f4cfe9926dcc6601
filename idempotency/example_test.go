package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// A request that is sent again under its key is answered again and not done
// again.
func Example() {
	db, end := pgtest.Example()
	defer end()
	ctx := context.Background()

	register := func(header, merchant string) (string, error) {
		value, err := idempotency.ParseKey([]string{header})
		if err != nil {
			return "", err
		}
		key := idempotency.Key{Scope: "acme", Operation: "POST /merchants", Value: value}
		fingerprint := idempotency.Fingerprint([]byte("v1"), []byte(merchant))
		for {
			record, found, now, err := idempotency.Look(ctx, db, key)
			if err != nil {
				return "", err
			}
			if found {
				answer, err := record.Replay(fingerprint)
				return string(answer.Body), err
			}
			answer := idempotency.Answer{StatusCode: http.StatusCreated, ContentType: "text/plain", Body: []byte(merchant + " is number 1")}
			b := &pgx.Batch{}
			idempotency.Claim(b, key, fingerprint, answer, now.Add(24*time.Hour))
			b.Queue(`insert into merchants (merchant_id) values ($1)`, merchant)
			err = db.Commit(ctx, b)
			if idempotency.IsTaken(err) {
				continue // a rival was faster: its answer is ours
			}
			return string(answer.Body), err
		}
	}
	fmt.Println(register(`"k1"`, "globex"))
	fmt.Println(register(`k1`, "globex"))
	fmt.Println(register(`k1`, "initech"))

	var merchants int
	err := db.QueryRow(ctx, `select count(*) from merchants`).Scan(&merchants)
	fmt.Println(merchants, err)
	// Output:
	// globex is number 1 <nil>
	// globex is number 1 <nil>
	//  the key was used for another request
	// 1 <nil>
}
