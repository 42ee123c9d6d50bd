package redact

import "testing"

func TestTextRemovesSecrets(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"nothing here", "nothing here"},
		{"https://example.com/a.raw", "https://example.com/a.raw"},
		{"https://user:SECRET@example.com/a.raw", "https://example.com/a.raw"},
		{"get https://example.com/a?token=SECRET: refused", "get https://example.com/a refused"},
		{"https://example.com/a#SECRET", "https://example.com/a"},
		{"https://example.com?SECRET", "https://example.com"},
		{"https://us@er:SECRET@example.com:8443/a?x", "https://example.com:8443/a"},
		{"https://user:SE%CRET@[::1]:80/%zz", "https://[::1]:80/%zz"},
		{"https://example.com/@latest/a", "https://example.com/@latest/a"},
		{`s3::https://k:SECRET@s3.example.com/b "HTTPS://a:SECRET@b/c?SECRET"`, `s3::https://s3.example.com/b "HTTPS://b/c"`},
		{"https://a/b?SECRET and https://c/d?SECRET", "https://a/b and https://c/d"},
	} {
		if got := Text(tt.text); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.text, got, tt.want)
		}
	}
}
