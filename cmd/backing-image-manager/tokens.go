package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// tokens are the secrets that callers may send, each with the role that it gives.
type tokens []roleToken

type roleToken struct {
	role  role
	token string
}

// newTokens reads the secrets of a file: one token for every role, or a line of
// "peer TOKEN" or "admin TOKEN" each. There may be several of a role, so that one
// can be replaced on all machines before the other goes.
func newTokens(log *slog.Logger, file string) (*reloaded[tokens], error) {
	return newReloaded(log, "token", func(contents [][]byte) (tokens, error) {
		t, err := parseTokens(string(contents[0]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return t, nil
	}, file)
}

// parseTokens names no word of a line in its errors: each could be a secret.
func parseTokens(text string) (tokens, error) {
	var found tokens
	bare := 0
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for n, line := range lines {
		words := strings.Fields(line)
		t := roleToken{role: adminRole}
		switch {
		case len(words) == 0:
			continue
		case len(words) == 1 && isRole(words[0]): // who wrote the file had no token: anybody can guess the role
			return nil, fmt.Errorf("line %d: there is no token behind the role", n+1)
		case len(words) == 1:
			t.token = words[0]
			bare++
		case len(words) == 2 && isRole(words[0]):
			t.token = words[1]
			if words[0] == peerRole.String() {
				t.role = peerRole
			}
		default:
			return nil, fmt.Errorf("line %d: write one token, or lines of \"peer TOKEN\" and \"admin TOKEN\"", n+1)
		}
		if strings.ContainsFunc(t.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("line %d: a token is made of letters, digits and signs of ASCII", n+1)
		}
		found = append(found, t)
	}
	switch {
	case len(found) == 0:
		return nil, errors.New("it is empty: write one token, or lines of \"peer TOKEN\" and \"admin TOKEN\"")
	case bare > 0 && len(found) > 1:
		return nil, errors.New("a token without a role has to be the only line: write \"peer TOKEN\" or \"admin TOKEN\"")
	}
	return found, nil
}

func isRole(word string) bool { return word == peerRole.String() || word == adminRole.String() }

// role returns the role of who sends this Authorization. It compares with every
// token, so that the time tells nothing.
func (t tokens) role(authorization string) role {
	sent, ok := strings.CutPrefix(authorization, "Bearer ")
	if !ok {
		return nobody
	}
	had := nobody
	got := sha256.Sum256([]byte(sent)) // sums have the same length, whatever the token's is
	for _, known := range t {
		want := sha256.Sum256([]byte(known.token))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			had = max(had, known.role)
		}
	}
	return had
}

// strongest is for people, who may want anything.
func (t tokens) strongest() string {
	for _, known := range t {
		if known.role == adminRole {
			return known.token
		}
	}
	return t[0].token
}

// weakest is for what only reads.
func (t tokens) weakest() string {
	for _, known := range t {
		if known.role == peerRole {
			return known.token
		}
	}
	return t[0].token
}
