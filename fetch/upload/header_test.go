package upload

import (
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

func FuzzParseMetadata(f *testing.F) {
	for _, text := range []string{
		"", " ", "name cGFycm90", "name cGFycm90,filename d29ybGRfZG9taW5hdGlvbl9wbGFuLnBkZg==,is_confidential",
		"name cGFycm90, sha256 " + strings.Repeat("YWJj", 10), "name", ",", "name cGFycm90,,", "name  cGFycm90", "\x00 YQ==",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMetadata(text)
		if err != nil {
			return
		}
		if m.Name != "" && ident.CheckName(m.Name) != nil {
			t.Errorf("%q is accepted as a name", m.Name)
		}
		again, err := parseMetadata(m.header())
		if again.text = m.text; err != nil || again != m {
			t.Errorf("%+v becomes %+v: %v", m, again, err)
		}
	})
}

func FuzzParseChecksum(f *testing.F) {
	f.Add("sha1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=", []byte("abc"))
	f.Add("sha256 ", []byte{})
	f.Fuzz(func(t *testing.T, text string, body []byte) {
		if matches, err := parseChecksum(text); err == nil {
			matches(body)
		}
	})
}

func FuzzParseCount(f *testing.F) {
	for _, text := range []string{"", "0", "-0", "+1", "512", "9223372036854775808", "1e3", " 1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseCount("it", text); err == nil && n < 0 {
			t.Errorf("%q is %d", text, n)
		}
	})
}
