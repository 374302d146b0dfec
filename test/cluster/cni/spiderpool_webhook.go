package cni

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Spiderpool's webhook decides what pools there can be: it fills in what a pool lacks, and refuses one whose
// addresses another pool of the subnet has. A driver without it would take pools that a cluster refuses.

const (
	spiderMutatePath   = "/mutate-spiderpool-spidernet-io-v2beta1-spiderippool"
	spiderValidatePath = "/validate-spiderpool-spidernet-io-v2beta1-spiderippool"
)

// serveWebhook serves on loopback, where the API server is too.
func (d *spiderpool) serveWebhook(ctx context.Context) (url string, ca []byte, stop func(), err error) {
	cert, ca, err := loopbackCertificate()
	if err != nil {
		return "", nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+spiderMutatePath, review(d.mutatePool))
	mux.HandleFunc("POST "+spiderValidatePath, review(func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if err := d.validatePool(ctx, r); err != nil {
			return &admissionv1.AdmissionResponse{Result: &err.ErrStatus}
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}}
	go func() { _ = server.ServeTLS(l, "", "") }()
	return "https://" + l.Addr().String(), ca, func() { _ = server.Close() }, nil
}

// registerWebhook points the API server to url.
func (d *spiderpool) registerWebhook(ctx context.Context, url string, ca []byte) error {
	const name, webhook = "spiderpool-controller", "spiderippool." + spiderGroup
	rule := func(ops ...registrationv1.OperationType) []registrationv1.RuleWithOperations {
		return []registrationv1.RuleWithOperations{{Operations: ops, Rule: registrationv1.Rule{
			APIGroups: []string{spiderGroup}, APIVersions: []string{"v2beta1"}, Resources: []string{"spiderippools"}}}}
	}
	client := func(path string) registrationv1.WebhookClientConfig {
		return registrationv1.WebhookClientConfig{URL: new(url + path), CABundle: ca}
	}
	none, versions := registrationv1.SideEffectClassNone, []string{"v1"}
	m := &registrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []registrationv1.MutatingWebhook{{
		Name: webhook, ClientConfig: client(spiderMutatePath), Rules: rule(registrationv1.Create, registrationv1.Update),
		FailurePolicy: new(registrationv1.Fail), SideEffects: &none, AdmissionReviewVersions: versions}}}
	v := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []registrationv1.ValidatingWebhook{{
		Name: webhook, ClientConfig: client(spiderValidatePath), Rules: rule(registrationv1.Create, registrationv1.Update),
		FailurePolicy: new(registrationv1.Fail), SideEffects: &none, AdmissionReviewVersions: versions}}}
	api := d.core.AdmissionregistrationV1()
	if err := swap(ctx, func() error {
		old, err := api.MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = api.MutatingWebhookConfigurations().Create(ctx, m, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		m.ResourceVersion = old.ResourceVersion
		_, err = api.MutatingWebhookConfigurations().Update(ctx, m, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	return swap(ctx, func() error {
		old, err := api.ValidatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = api.ValidatingWebhookConfigurations().Create(ctx, v, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		v.ResourceVersion = old.ResourceVersion
		_, err = api.ValidatingWebhookConfigurations().Update(ctx, v, metav1.UpdateOptions{})
		return err
	})
}

func review(f func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Request == nil {
			http.Error(w, "not an admission review", http.StatusBadRequest)
			return
		}
		in.Response = f(in.Request)
		in.Response.UID = in.Request.UID
		in.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(in)
	}
}

// mutatePool fills in the finalizer, the version and the label, and merges ranges.
func (d *spiderpool) mutatePool(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	out := &admissionv1.AdmissionResponse{Allowed: true}
	var p spiderPool
	if json.Unmarshal(r.Object.Raw, &p) != nil || p.DeletionTimestamp != nil {
		return out
	}
	var patch []map[string]any
	add := func(path string, value any) {
		patch = append(patch, map[string]any{"op": "add", "path": path, "value": value})
	}
	if !slices.Contains(p.Finalizers, spiderFinalizer) {
		add("/metadata/finalizers", append(p.Finalizers, spiderFinalizer))
	}
	subnet, err := netip.ParsePrefix(p.Spec.Subnet)
	if err == nil {
		if p.Spec.IPVersion == nil {
			add("/spec/ipVersion", version(subnet.Addr()))
		}
		if p.Labels[spiderCIDRLabel] != cidrName(subnet) {
			labels := map[string]string{spiderCIDRLabel: cidrName(subnet)}
			for k, v := range p.Labels {
				if k != spiderCIDRLabel {
					labels[k] = v
				}
			}
			add("/metadata/labels", labels)
		}
	}
	for path, list := range map[string][]string{"/spec/ips": p.Spec.IPs, "/spec/excludeIPs": p.Spec.ExcludeIPs} {
		if len(list) > 1 {
			if merged := mergeRanges(list); merged != nil && !slices.Equal(merged, list) {
				add(path, merged)
			}
		}
	}
	if len(patch) > 0 {
		out.Patch, _ = json.Marshal(patch)
		out.PatchType = new(admissionv1.PatchTypeJSONPatch)
	}
	return out
}

// mergeRanges sorts ranges and joins those that touch. It returns nil for ranges that it cannot read.
func mergeRanges(list []string) []string {
	var in spans
	for _, s := range list {
		r, err := parseSpan(s, "-")
		if err != nil {
			return nil
		}
		in = append(in, r)
	}
	slices.SortFunc(in, func(a, b span) int { return a.first.Compare(b.first) })
	var out []string
	for i := 0; i < len(in); i++ {
		r := in[i]
		for i+1 < len(in) && (r.contains(in[i+1].first) || r.last.Next() == in[i+1].first) {
			i++
			if r.last.Less(in[i].last) {
				r.last = in[i].last
			}
		}
		out = append(out, r.String())
	}
	return out
}

var spiderPoolKind = schema.GroupKind{Group: spiderGroup, Kind: "SpiderIPPool"}

func (d *spiderpool) validatePool(ctx context.Context, r *admissionv1.AdmissionRequest) *apierrors.StatusError {
	var p, old spiderPool
	if err := json.Unmarshal(r.Object.Raw, &p); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	spec := field.NewPath("spec")
	invalid := func(e *field.Error) *apierrors.StatusError {
		return apierrors.NewInvalid(spiderPoolKind, p.Name, field.ErrorList{e})
	}
	if r.Operation == admissionv1.Update {
		if err := json.Unmarshal(r.OldObject.Raw, &old); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if p.DeletionTimestamp != nil {
			if !slices.Contains(p.Finalizers, spiderFinalizer) {
				return nil
			}
			return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("cannot update a terminating IPPool"))
		}
		if p.Spec.Subnet != old.Spec.Subnet {
			return invalid(field.Forbidden(spec.Child("subnet"), "is not changeable"))
		}
	}
	subnet, err := netip.ParsePrefix(p.Spec.Subnet)
	switch {
	case p.Spec.IPVersion == nil:
		return invalid(field.Invalid(spec.Child("ipVersion"), p.Spec.IPVersion, "is not generated correctly, 'spec.subnet' may be invalid"))
	case err != nil || int64(version(subnet.Addr())) != *p.Spec.IPVersion || subnet != subnet.Masked():
		return invalid(field.Invalid(spec.Child("subnet"), p.Spec.Subnet, fmt.Sprintf("invalid IPv%d CIDR format", *p.Spec.IPVersion)))
	}
	conf, err := d.config(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if enabled := map[int64]bool{4: conf.EnableIPv4, 6: conf.EnableIPv6}; !enabled[*p.Spec.IPVersion] {
		return invalid(field.Forbidden(spec.Child("ipVersion"), fmt.Sprintf("IPv%d is disabled", *p.Spec.IPVersion)))
	}
	for _, s := range slices.Concat(p.Spec.IPs, p.Spec.ExcludeIPs) {
		if a, err := parseSpan(s, "-"); err != nil || !subnet.Contains(a.first) || !subnet.Contains(a.last) {
			return invalid(field.Invalid(spec.Child("subnet"), p.Spec.Subnet, fmt.Sprintf("range %s is not contained in the subnet", s)))
		}
	}
	pools, err := d.pools.list(ctx, "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	for i := range pools {
		q := &pools[i]
		other, err := netip.ParsePrefix(q.Spec.Subnet)
		if q.Name == p.Name || err != nil {
			continue
		}
		if other != subnet {
			if other.Overlaps(subnet) && r.Operation == admissionv1.Create {
				return invalid(field.Invalid(spec.Child("subnet"), p.Spec.Subnet, fmt.Sprintf("overlap with IPPool %s which 'spec.subnet' is %s", q.Name, q.Spec.Subnet)))
			}
			continue
		}
		mine, theirs := p.ranges(), q.ranges()
		var both []string
		for _, t := range theirs {
			if slices.ContainsFunc(mine, func(m span) bool { return !t.last.Less(m.first) && !m.last.Less(t.first) }) {
				both = append(both, t.String())
			}
		}
		if len(both) > 0 {
			return invalid(field.Forbidden(spec.Child("ips"), fmt.Sprintf(
				"overlap with IPPool %s in IP ranges %v, total IP addresses of an IPPool are jointly determined by 'spec.ips' and 'spec.excludeIPs'", q.Name, both)))
		}
	}
	if p.Spec.Gateway != nil {
		g, err := netip.ParseAddr(*p.Spec.Gateway)
		if err != nil || !subnet.Contains(g) {
			return invalid(field.Invalid(spec.Child("gateway"), *p.Spec.Gateway, fmt.Sprintf("not pertains to the 'spec.subnet' %s of IPPool", p.Spec.Subnet)))
		}
		for i, s := range p.Spec.IPs {
			if a, err := parseSpan(s, "-"); err == nil && a.contains(g) && !parseRanges(p.Spec.ExcludeIPs).contains(g) {
				return invalid(field.Invalid(spec.Child("ips").Index(i), s, fmt.Sprintf(
					"conflicts with 'spec.gateway' %s, add the gateway IP address to 'spec.excludeIPs' or remove it from 'spec.ips'", g)))
			}
		}
	}
	if s := p.Spec.PodAffinity; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return invalid(field.Invalid(spec.Child("podAffinity"), "{}", "empty podAffinity is invalid for SpiderIPPool"))
	}
	if r.Operation == admissionv1.Update {
		records, err := p.records()
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		for _, addr := range sortedKeys(records) {
			if a, err := netip.ParseAddr(addr); err == nil && !p.ranges().contains(a) {
				return invalid(field.Forbidden(spec.Child("ips"), fmt.Sprintf(
					"remove an IP address %s that is being used by Pod %s, total IP addresses of an IPPool are jointly determined by 'spec.ips' and 'spec.excludeIPs'", addr, records[addr].Pod)))
			}
		}
	}
	return nil
}

// loopbackCertificate is a certificate for 127.0.0.1 that signs itself.
func loopbackCertificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "spiderpool-controller"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
