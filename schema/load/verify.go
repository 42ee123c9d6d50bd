package load

import (
	"github.com/seed-26586806/backing-image-manager/schema"
)

// verify converts and checks who must have signed a download.
func (f fields) verify(download *schema.Download) *schema.Verify {
	all, declared := f.in("verify")
	if !declared || !f.ofDownload(all.place, download, "only a download has a signature; settings.verify.exempt names images without one") {
		return nil
	}
	v := &schema.Verify{}
	for _, v.Scheme = range []schema.VerifyScheme{schema.VerifyOpenPGP, schema.VerifyMinisign, schema.VerifySignify, schema.VerifyCosign} {
		if keys, ok := all.in(string(v.Scheme)); ok {
			v.Keys, v.SignatureURL = keys.text("keys"), keys.trimmed("signatureURL")
			keys.checkSignature(*v, *download)
			break
		}
	}
	return v
}

// checkSignature checks the address of a signature.
func (f fields) checkSignature(v schema.Verify, download schema.Download) {
	at := f.of("signatureURL")
	if v.SignatureURL != "" {
		at.address(v.SignatureURL)
	}
	noList := f.lacks("source", "download", "checksumURL")
	switch noAddress := f.lacks(at.at...); {
	case v.Scheme == schema.VerifySignify && noList:
		f.report("needs source.download.checksumURL", "signify is for lists: it cannot verify an image while the image arrives")
	case v.Scheme == schema.VerifyCosign && noAddress, v.Scheme == schema.VerifyOpenPGP && noAddress && noList:
		at.report("is missing", "write the address of the signature")
	case v.Scheme == schema.VerifySignify && v.SignsFile(download):
		at.report("is the address of a signature of the image", "signify is for lists: it cannot verify an image while the image arrives")
	}
}
