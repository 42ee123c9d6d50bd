package backup

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

const nameParameter = "backingImage"

// ParseURL divides the address of a backup, "<target>?backingImage=<name>", into its
// target, other parameters of the query included, and its name.
func ParseURL(address string) (target, name string, err error) {
	base, query, _ := strings.Cut(address, "?")
	var names, others []string
	for pair := range strings.SplitSeq(query, "&") {
		if value, ok := strings.CutPrefix(pair, nameParameter+"="); ok {
			names = append(names, value)
		} else if pair != "" {
			others = append(others, pair)
		}
	}
	switch {
	case base == "":
		return "", "", errors.New("the address of a backup has a target: <target>?backingImage=<name>")
	case len(names) != 1:
		return "", "", errors.New("the address of a backup ends with ?backingImage=<name>, once")
	}
	if name, err = url.QueryUnescape(names[0]); err != nil {
		return "", "", fmt.Errorf("%.80q is not the name of a backup", names[0])
	}
	if err := CheckName(name); err != nil {
		return "", "", err
	}
	if len(others) > 0 {
		base += "?" + strings.Join(others, "&")
	}
	return base, name, nil
}

// URL is the address of a backup: what ParseURL reads.
func URL(target, name string) string {
	separator := "?"
	if strings.Contains(target, "?") {
		separator = "&"
	}
	return target + separator + nameParameter + "=" + name
}
