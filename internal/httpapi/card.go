package httpapi

import "github.com/google/uuid"

// Digits of a card number.
const (
	shortestCard = 13
	longestCard  = 19
)

const uuidLength = 36

// holdsCard tells whether a text holds what may be a card number: 13 to 19
// digits that pass Luhn's check, with spaces or dashes between them, and no
// letter at either end. Such a text is refused, so that no card is ever kept
// here. The digits of a UUID do not count: one in some thousands would pass.
func holdsCard(s string) bool {
	for i := 0; i < len(s); i++ {
		if rest := s[i:]; len(rest) >= uuidLength && uuid.Validate(rest[:uuidLength]) == nil {
			i += uuidLength - 1
			continue
		}
		if isDigit(s[i]) && (i == 0 || !isWord(s[i-1])) && startsWithCard(s[i:]) {
			return true
		}
	}
	return false
}

func startsWithCard(s string) bool {
	var digits []byte
	for i := 0; i < len(s) && len(digits) < longestCard; i++ {
		switch {
		case s[i] == ' ' || s[i] == '-':
			continue
		case !isDigit(s[i]):
			return false
		}
		digits = append(digits, s[i]-'0')
		ends := i+1 == len(s) || !isWord(s[i+1])
		if ends && len(digits) >= shortestCard && luhn(digits) {
			return true
		}
	}
	return false
}

// luhn is the check of ISO/IEC 7812: every second digit from the right is
// doubled, and the digits of it all add up to a multiple of ten.
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

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// isWord counts every byte beyond ASCII as part of a letter.
func isWord(b byte) bool {
	return isDigit(b) || 'a' <= b|0x20 && b|0x20 <= 'z' || b >= 0x80
}
