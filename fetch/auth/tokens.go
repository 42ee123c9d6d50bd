package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// tokens are the valid tokens with their roles.
type tokens []roleToken

type roleToken struct {
	role  Role
	token string
}

// minTokenLength is the minimum length of a token: 16 random hexadecimal digits are 64 bits. Nothing
// slows down a caller of the HTTP API that guesses tokens.
const minTokenLength = 16

// loadTokens reads a token file: one token for every role, or lines of "peer TOKEN" and "admin
// TOKEN". A role may have several tokens, so that an operator can distribute a new token to all
// machines before the old token is removed.
func loadTokens(log *slog.Logger, file string) (*reloader[tokens], error) {
	return newReloader(log, "token", func(contents [][]byte) (tokens, error) {
		t, err := parseTokens(string(contents[0]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return t, nil
	}, file)
}

// parseTokens parses a token file. Its errors contain no word of the text, because each word could be
// a secret.
func parseTokens(text string) (tokens, error) {
	var found tokens
	withoutRole := 0
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for n, line := range lines {
		words := strings.Fields(line)
		t := roleToken{role: RoleAdmin}
		switch {
		case len(words) == 0:
			continue
		case len(words) == 1 && isRole(words[0]):
			// The token was forgotten. The name of a role must not become a token, because it would be
			// easy to guess.
			return nil, fmt.Errorf("line %d: the token after the role is missing", n+1)
		case len(words) == 1:
			t.token = words[0]
			withoutRole++
		case len(words) == 2 && isRole(words[0]):
			t.token = words[1]
			if words[0] == RolePeer.String() {
				t.role = RolePeer
			}
		default:
			return nil, fmt.Errorf("line %d: write one token, or lines of \"peer TOKEN\" and \"admin TOKEN\"", n+1)
		}
		if strings.ContainsFunc(t.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("line %d: a token must consist of printable ASCII characters without spaces", n+1)
		}
		if len(t.token) < minTokenLength {
			return nil, fmt.Errorf("line %d: the token has fewer than %d characters, so it could be guessed: create one with: openssl rand -hex 32", n+1, minTokenLength)
		}
		found = append(found, t)
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("%w: write one token, or lines of \"peer TOKEN\" and \"admin TOKEN\"", errNothingTrusted)
	case withoutRole > 0 && len(found) > 1:
		return nil, errors.New("a token without a role must be the only line: write \"peer TOKEN\" or \"admin TOKEN\"")
	}
	return found, nil
}

func isRole(word string) bool { return word == RolePeer.String() || word == RoleAdmin.String() }

// role returns the role for the value of an Authorization header. It compares the value with every
// token in constant time, so that the duration of a request reveals no token.
func (t tokens) role(authorization string) Role {
	sent, ok := strings.CutPrefix(authorization, "Bearer ")
	if !ok {
		return RoleNone
	}
	role := RoleNone
	got := sha256.Sum256([]byte(sent)) // hashes have equal lengths, even if the tokens do not
	for _, known := range t {
		want := sha256.Sum256([]byte(known.token))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			role = max(role, known.role)
		}
	}
	return role
}

// prefer returns a token with a role, or else any other token. "" means that there are no tokens.
func (t tokens) prefer(role Role) string {
	for _, known := range t {
		if known.role == role {
			return known.token
		}
	}
	if len(t) == 0 {
		return ""
	}
	return t[0].token
}
