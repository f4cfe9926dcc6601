package httpapi

import (
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Digits of a card number.
const (
	shortestCard = 13
	longestCard  = 19
)

const uuidLength = 36

// holdsCard reports whether a text holds what may be a card number: 13 to 19 digits that
// pass Luhn's check, with spaces or dashes of any kind between them, and no letter at either
// end. Such a text is refused, so that no card is ever kept here. The digits of a UUID do not
// count: one in some thousands would pass.
func holdsCard(s string) bool {
	before := ' '
	for i := 0; i < len(s); {
		if rest := s[i:]; len(rest) >= uuidLength && uuid.Validate(rest[:uuidLength]) == nil {
			i += uuidLength
			before = 'f' // a UUID ends with a digit of its own
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if isDigit(r) && !isWord(before) && startsWithCard(s[i:]) {
			return true
		}
		before = r
		i += size
	}
	return false
}

func startsWithCard(s string) bool {
	var digits []byte
	for i, r := range s {
		switch {
		case len(digits) == longestCard:
			return false
		case separates(r):
			continue
		case !isDigit(r):
			return false
		}
		digits = append(digits, byte(r-'0'))
		next, _ := utf8.DecodeRuneInString(s[i+1:])
		if !isWord(next) && len(digits) >= shortestCard && luhn(digits) {
			return true
		}
	}
	return false
}

// separates reports whether people paste a character between the digits of a card: a space,
// a tab or a dash of any kind.
func separates(r rune) bool {
	return r == '\t' || unicode.Is(unicode.Zs, r) || unicode.Is(unicode.Pd, r)
}

// luhn is the check of ISO/IEC 7812: every second digit from the right is doubled, and the
// digits of it all add up to a multiple of ten.
func luhn(digits []byte) bool {
	sum := 0
	for i, d := range digits {
		n := int(d)
		if (len(digits)-i)%2 == 0 {
			n *= 2
		}
		sum += n/10 + n%10
	}
	return sum%10 == 0
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
