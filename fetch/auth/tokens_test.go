package auth

import (
	"log/slog"
	"strings"
	"testing"
)

func TestParseTokens(t *testing.T) {
	const shape = `write one token, or lines of "peer TOKEN" and "admin TOKEN"`
	const short = "the token has fewer than 16 characters, so it could be guessed: create one with: openssl rand -hex 32"
	const onlyLine = `a token without a role must be the only line: write "peer TOKEN" or "admin TOKEN"`
	const a, b, c, d = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "dddddddddddddddd"
	for _, tt := range []struct{ text, highest, lowest, err string }{
		{"open-sesame-0123\n", "open-sesame-0123", "open-sesame-0123", ""},
		{"\n  open-sesame-0123  \r\n\n", "open-sesame-0123", "open-sesame-0123", ""},
		{"peer " + a + "\npeer " + b + "\nadmin " + c + "\nadmin " + d, c, a, ""},
		{"admin " + c, c, c, ""},
		{"peer " + a, a, a, ""},
		{"", "", "", "it is empty: " + shape},
		{" \n\n", "", "", "it is empty: " + shape},
		{"operator " + a, "", "", "line 1: " + shape},
		{"peer " + a + "\nadmin " + b + " c", "", "", "line 2: " + shape},
		{a + "\n" + b, "", "", onlyLine},
		{"peer " + a + "\n" + b, "", "", onlyLine},
		{"peer \n", "", "", "line 1: the token after the role is missing"},
		{"admin", "", "", "line 1: the token after the role is missing"},
		{"peer " + a + "\nadmin", "", "", "line 2: the token after the role is missing"},
		{"pässword", "", "", "line 1: a token must consist of printable ASCII characters without spaces"},
		{"a\x00b", "", "", "line 1: a token must consist of printable ASCII characters without spaces"},
		{"x", "", "", "line 1: " + short},
		{a[:15], "", "", "line 1: " + short},
		{"peer " + a + "\nadmin " + b[:15], "", "", "line 2: " + short},
	} {
		got, err := parseTokens(tt.text)
		switch {
		case tt.err != "":
			if err == nil || err.Error() != tt.err {
				t.Errorf("%q: error %v, want %s", tt.text, err, tt.err)
			}
		case err != nil:
			t.Errorf("%q: %v", tt.text, err)
		case got.prefer(RoleAdmin) != tt.highest || got.prefer(RolePeer) != tt.lowest:
			t.Errorf("%q: sends %s and %s, want %s and %s", tt.text, got.prefer(RoleAdmin), got.prefer(RolePeer), tt.highest, tt.lowest)
		}
	}
}

func TestTokenFileThatIsAFolderIsAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := loadTokens(slog.New(slog.DiscardHandler), dir)
	if want := "read token: " + dir + " is a folder, but must be a file"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestTokenErrorsContainNoToken(t *testing.T) {
	for _, text := range []string{"SECRET SECRET SECRET", "operator SECRET", "SECRET\nSECRET", "SECRET\x01", "SECRET", "peer SECRET"} {
		if _, err := parseTokens(text); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
