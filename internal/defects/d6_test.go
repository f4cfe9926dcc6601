package defects_test

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // what the document uses
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/jackc/pgx/v5/pgxpool"
)

// D6: identities that do not identify. A hash named SHA-256 is MD5; a duplicate
// gets some answer, not the first one; messages are told apart by 32 bits of
// their value; content is hashed as it happens to be written; and a window of
// time ends in the middle of a redelivery.

// processedOfD6 is the document's guard: a new key pays.
const processedOfD6 = `
create table processed_messages (
  message_id text primary key
)`

func payOnceOfD6(ctx context.Context, db *pgxpool.Pool, key string) error {
	taken, err := db.Exec(ctx, `insert into processed_messages values ($1) on conflict do nothing`, key)
	if err == nil && taken.RowsAffected() == 1 {
		_, err = db.Exec(ctx, pay, key)
	}
	return err
}

// hashCode is Java's String.hashCode.
func hashCode(s string) (hash int32) {
	for _, unit := range utf16.Encode([]rune(s)) {
		hash = 31*hash + int32(unit)
	}
	return hash
}

// Two bodies of one MD5, published by Wang and Yu. They differ in six bits.
const (
	bodyOfWang = "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89" +
		"55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b" +
		"d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0" +
		"e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
	bodyOfYu = "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f89" +
		"55ad340609f4b30283e4888325f1415a085125e8f7cdc99fd91dbd7280373c5b" +
		"d8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0" +
		"e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70"
)

func TestD6(t *testing.T) {
	t.Parallel()

	t.Run("the hash of an answer is half as long as its column, and another answer has it", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, `create table idempotency_keys (idem_key text primary key, result_body_hash char(64) not null)`)
		one, other := fromHex(t, bodyOfWang), fromHex(t, bodyOfYu)
		if bytes.Equal(one, other) || sha256.Sum256(one) == sha256.Sum256(other) {
			t.Fatal("the bodies are the same")
		}
		stored := md5.Sum(one) //nolint:gosec // what the document uses
		_, err := db.Exec(t.Context(), `insert into idempotency_keys values ('k1', $1)`, hex.EncodeToString(stored[:]))
		if err != nil {
			t.Fatal(err)
		}
		wantCount(t, db, "characters of the hash", 32, `select length(rtrim(result_body_hash)) from idempotency_keys`)
		found := md5.Sum(other) //nolint:gosec // what the document uses
		wantCount(t, db, "answers that pass for the stored one", 1,
			`select count(*) from idempotency_keys where result_body_hash = $1`, hex.EncodeToString(found[:]))
	})

	t.Run("a duplicate gets another answer", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processedOfD6)
		create := func() string {
			taken, err := db.Exec(t.Context(), `insert into processed_messages values ('k1') on conflict do nothing`)
			if err != nil {
				t.Fatal(err)
			}
			if taken.RowsAffected() == 0 {
				return `{"idempotent":true,"message":"duplicate accepted"}`
			}
			return `{"status":"captured","orderId":"order 1"}`
		}
		if first, again := create(), create(); first == again {
			t.Errorf("both got %s", first)
		}
	})

	t.Run("a message whose hash of 32 bits is known is lost", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processedOfD6, payments)
		for _, value := range []string{`{"order":"Aa"}`, `{"order":"BB"}`} {
			key := fmt.Sprintf("orders@orders/0/customer 7#%d", hashCode(value))
			if err := payOnceOfD6(t.Context(), db, key); err != nil {
				t.Error(err)
			}
		}
		wantPayments(t, db, 1)
	})

	t.Run("one message written in two ways pays twice", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processedOfD6, payments)
		for _, written := range []string{`{"orderId":"1","amount":100}`, `{"amount":100,"orderId":"1"}`} {
			sum := sha256.Sum256([]byte(written))
			if err := payOnceOfD6(t.Context(), db, hex.EncodeToString(sum[:])); err != nil {
				t.Error(err)
			}
		}
		wantPayments(t, db, 2)
	})

	t.Run("a duplicate beyond the full hour pays twice", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processedOfD6, payments)
		hour := time.Date(2026, time.January, 1, 11, 0, 0, 0, time.UTC)
		for _, at := range []time.Time{hour.Add(-time.Second), hour.Add(time.Second)} {
			key := fmt.Sprintf("report:%d", at.Unix()/3600)
			if err := payOnceOfD6(t.Context(), db, key); err != nil {
				t.Error(err)
			}
		}
		wantPayments(t, db, 2)
	})
}

func fromHex(t *testing.T, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
