package defects_test

import (
	"bytes"
	"crypto/md5" //nolint:gosec // what the document uses
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"
	"unicode/utf16"
)

// D6: identities that do not identify. A hash named SHA-256 is MD5; a duplicate
// gets some answer, not the first one; messages are distinguished by 32 bits of
// their value; content is hashed as it happens to be written; and a window of
// time ends in the middle of a redelivery.

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
		exec(t, db, `insert into idempotency_keys values ('k1', $1)`, hex.EncodeToString(stored[:]))
		wantCount(t, db, "characters of the hash", 32, `select length(rtrim(result_body_hash)) from idempotency_keys`)
		found := md5.Sum(other) //nolint:gosec // what the document uses
		wantCount(t, db, "answers that pass for the stored one", 1,
			`select count(*) from idempotency_keys where result_body_hash = $1`, hex.EncodeToString(found[:]))
	})

	t.Run("a duplicate gets another answer", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processed)
		create := func() string {
			if !isNew(t, db, "k1") {
				return `{"idempotent":true,"message":"duplicate accepted"}`
			}
			return `{"status":"captured","orderId":"order 1"}`
		}
		if first, again := create(), create(); first == again {
			t.Errorf("both got %s", first)
		}
	})

	ofValue := func(value string) string { return fmt.Sprintf("orders@orders/0/customer 7#%d", hashCode(value)) }
	hour := time.Date(2026, time.January, 1, 11, 0, 0, 0, time.UTC)
	ofHour := func(at time.Time) string { return fmt.Sprintf("report:%d", at.Unix()/3600) }
	for name, test := range map[string]struct {
		keys     []string
		payments int
	}{
		"a message whose hash of 32 bits is known is lost": {
			[]string{ofValue(`{"order":"Aa"}`), ofValue(`{"order":"BB"}`)}, 1,
		},
		"one message written in two ways pays twice": {
			[]string{contentHash(`{"orderId":"1","amount":100}`), contentHash(`{"amount":100,"orderId":"1"}`)}, 2,
		},
		"a duplicate beyond the full hour pays twice": {
			[]string{ofHour(hour.Add(-time.Second)), ofHour(hour.Add(time.Second))}, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantPaymentsFor(t, test.payments, test.keys...)
		})
	}
}

// D7: one document's example of a good key is order, warehouse and timestamp.
// Two systems that trigger the same shipment do so at two moments, and so does
// one system that tries again: the keys differ. Another of the documents lists
// just this as an anti-pattern.

func TestD7(t *testing.T) {
	t.Parallel()
	t.Run("an order that two systems trigger is shipped twice", func(t *testing.T) {
		t.Parallel()
		noon := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
		key := func(at time.Time) string { return fmt.Sprintf("order 1/berlin/%d", at.Unix()) }
		wantPaymentsFor(t, 2, key(noon), key(noon.Add(3*time.Second)))
	})
}

func contentHash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func fromHex(t *testing.T, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	must(t, err)
	return b
}
