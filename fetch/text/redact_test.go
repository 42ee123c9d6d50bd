package text

import (
	"encoding/json"
	"testing"
)

func TestRedactRemovesSecrets(t *testing.T) {
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
		{"in the address of a backup (s3://bucket@region/path)", "in the address of a backup (s3://bucket@region/path)"},
		{"s3://my.bucket-1@eu-central-1/?backingImage=SECRET", "s3://my.bucket-1@eu-central-1/"},
		{"s3://AKIASECRET@bucket/a s3://user:secret@bucket/a s3://a/b?secret s3://bucket@se:cret@region/a", "s3://bucket/a s3://bucket/a s3://a/b s3://region/a"},
		{"http://bucket@region/a s3::https://bucket@region/a", "http://region/a s3::https://region/a"},
	} {
		if got := Redact(tt.text); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestRedactURLRemovesSecrets(t *testing.T) {
	for _, tt := range []struct{ address, want string }{
		{"https://user:SECRET@example.com/a?SECRET#SECRET", "https://example.com/a"},
		{"s3://bucket@region/a?SECRET", "s3://bucket@region/a"},
		{"s3://bucket:SECRET@region/a", "s3://region/a"},
		{"https://%zz:SECRET@example.com", "the address"},
		{"", "the address"},
	} {
		if got := RedactURL(tt.address); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.address, got, tt.want)
		}
	}
}

func TestRedactJSONRemovesSecrets(t *testing.T) {
	for _, tt := range []struct{ value, want any }{
		{map[string]any{"url": "https://user:SECRET@example.com/a?token=<SECRET>&b=\"SECRET\"", "n": 1.5, "list": []string{"s3::https://x/b?SECRET", "plain"}},
			map[string]any{"url": "https://example.com/a", "n": 1.5, "list": []string{"s3::https://x/b", "plain"}}},
		{"see https://x.example/a?SECRET and more", "see https://x.example/a and more"},
		{"a \\ backslash and a \" quote", "a \\ backslash and a \" quote"},
	} {
		encoded, err := json.Marshal(tt.value)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(tt.want)
		if err != nil {
			t.Fatal(err)
		}
		if got := RedactJSON(encoded); string(got) != string(want) {
			t.Errorf("%s becomes %s, want %s", encoded, got, want)
		}
	}
}
