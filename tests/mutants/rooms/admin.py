"""Admin pages: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "templatetags/tasklock.py",
        "a name is shown as HTML",
        'return mark_safe(_BREAK_POINTS.sub(r"\\1<wbr>", escape(text)))',
        'return mark_safe(_BREAK_POINTS.sub(r"\\1<wbr>", str(text)))',
        "tests/doors/test_admin_pages.py -k markup",
    ),
    Fault(
        "admin/base.py",
        "who may look may act",
        "return self.has_view_permission(request) and bool(user.has_perm(self.act_permission))",
        "return self.has_view_permission(request)",
        "tests/doors/test_admin_access.py",
    ),
    Fault(
        "admin/base.py",
        "no page asks for a permission",
        "            if not allowed:\n                raise PermissionDenied\n",
        "",
        "tests/doors/test_admin_access.py",
    ),
    Fault(
        "admin/locks/actions.py",
        "a GET releases",
        '    if request.method == "POST":\n        form = ReleaseForm(request.POST, row=call_or_404(find_row, name))',
        "    if request.POST or request.GET:\n"
        "        form = ReleaseForm(request.POST or request.GET, row=call_or_404(find_row, name))",
        "tests/doors/test_admin_access.py",
    ),
    Fault(
        "admin/locks/actions.py",
        "an old form releases another holder's lock",
        'for key in ("reason", "fingerprint")}',
        'for key in ("reason",)}',
        "tests/doors/test_admin_acts.py -k changed_hands",
    ),
    Fault(
        "admin/locks/actions.py",
        "an old selection releases another holder's lock",
        "by=admin.actor(request), reason=reason, fingerprint=fingerprint)",
        "by=admin.actor(request), reason=reason)",
        "tests/doors/test_admin_acts.py -k several",
    ),
    Fault(
        "admin/base.py",
        "acts are nobody's",
        "return Actor(name=user.get_username(), user_id=user.pk)",
        'return Actor(name="admin")',
        "tests/doors/test_admin_acts.py -k trails",
    ),
    Fault(
        "admin/base.py",
        "a release inside of the project's transaction",
        "outside_transactions(self.admin_site.admin_view(view))",
        "self.admin_site.admin_view(view)",
        "tests/doors/test_admin_acts.py -k transactions",
    ),
    Fault(
        "admin/base.py",
        "a row of another tenant is linked",
        "lock.row is None or other_tenant(lock.info.name):",
        "lock.row is None:",
        "tests/doors/test_admin_sites.py -k tenant",
    ),
    Fault(
        "admin/tables.py",
        "a formula in a file of the audit trail",
        'f"\'{text}" if text.startswith(_FORMULA) else text for text in texts',
        "text for text in texts",
        "tests/doors/test_admin_tables.py",
    ),
]
