package httpapi_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/bojanz/currency"
	"github.com/google/uuid"

	"github.com/payonce/payonce/internal/openapi"
)

// contract is read once; it never changes.
var contract = sync.OnceValues(func() (*openapi.Contract, error) {
	document, err := os.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	return openapi.Read(document, openapi.Formats{"text": isText, "iso-4217": isCurrency, "int64": isInt64})
})

func theContract(tb testing.TB) *openapi.Contract {
	tb.Helper()
	c, err := contract()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// rule is one by which an exchange is judged.
type rule func(*openapi.Contract, openapi.Exchange) error

// judged is the handler, each exchange with which must be as the contract has it:
// the answer is listed there, and body and parameters are refused if the contract
// refuses them, and only then.
func judged(tb testing.TB, handler http.Handler) http.Handler {
	tb.Helper()
	return judgedBy(tb, handler, (*openapi.Contract).Check, agrees, fits)
}

func judgedBy(tb testing.TB, handler http.Handler, rules ...rule) http.Handler {
	tb.Helper()
	c := theContract(tb)
	return openapi.Handler(handler, func(e openapi.Exchange) {
		for _, obeys := range rules {
			if err := obeys(c, e); err != nil {
				tb.Error(err)
			}
		}
	})
}

// The formats of the contract, written anew: what is held to them should not
// judge itself.
var (
	errNUL  = errors.New("holds U+0000")
	errCard = errors.New("may hold a card number")
)

func isText(value any) error {
	s, ok := value.(string)
	switch {
	case ok && strings.ContainsRune(s, 0):
		return errNUL
	case ok && mayHoldCard(s):
		return errCard
	}
	return nil
}

func isCurrency(value any) error {
	s, ok := value.(string)
	switch {
	case ok && strings.ContainsRune(s, 0):
		return errNUL
	case ok && (s == "" || !currency.IsValid(s)):
		return errors.New("is no currency")
	}
	return nil
}

func isInt64(value any) error {
	n, ok := value.(json.Number)
	if !ok {
		return nil // no number
	}
	_, err := strconv.ParseInt(n.String(), 10, 64)
	return err
}

// mayHoldCard looks for a run of 13 to 19 digits, blanks and dashes among them,
// between two characters that are no part of a word. None begins in a UUID.
func mayHoldCard(s string) bool {
	runes := []rune(s)
	inWord := func(i int) bool {
		return i >= 0 && i < len(runes) && (unicode.IsLetter(runes[i]) || unicode.IsDigit(runes[i]))
	}
	for start := 0; start < len(runes); start++ {
		if len(runes)-start >= uuidLength && uuid.Validate(string(runes[start:start+uuidLength])) == nil {
			start += uuidLength
			continue
		}
		if isDigit(runes[start]) && !inWord(start-1) && beginsWithCard(runes[start:], func(i int) bool { return inWord(start + i) }) {
			return true
		}
	}
	return false
}

const uuidLength = 36

func beginsWithCard(runes []rune, inWord func(int) bool) bool {
	var digits []byte
	for i, r := range runes {
		switch {
		case len(digits) > 0 && unicode.In(r, unicode.Zs, unicode.Pd) || r == '\t':
			continue
		case !isDigit(r):
			return false
		}
		if digits = append(digits, byte(r)); len(digits) > 19 {
			return false
		}
		if len(digits) >= 13 && !inWord(i+1) && passesLuhn(digits) {
			return true
		}
	}
	return false
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func passesLuhn(digits []byte) bool {
	sum := 0
	for i := range digits {
		n := int(digits[len(digits)-1-i] - '0')
		if i%2 == 1 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return sum%10 == 0
}
